package noise

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Quantum is how much work is timed at once. Reading the clock takes much less, and an
// interruption is clearly visible.
const Quantum = time.Millisecond

// Probe works on a core for a time, in quanta of so many steps (Calibrate), and returns the
// result. It uses the whole core meanwhile. Go's runtime itself interrupts the work about a
// hundred times a second for some microseconds. When ctx ends, Probe returns the result so far.
func Probe(ctx context.Context, cpu, steps int, lasts time.Duration) (c Core, err error) {
	c.CPU = cpu
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		// Never unlocked: the thread ends, because it is bound to a core.
		runtime.LockOSThread()
		c.Quanta, c.Sources, err = probe(ctx, cpu, steps, lasts)
	}()
	<-finished
	return c, err
}

func probe(ctx context.Context, cpu, steps int, lasts time.Duration) (quanta []float64, sources []Source, err error) {
	if err := stay(cpu); err != nil {
		return nil, nil, err
	}
	quanta = make([]float64, 0, int(lasts/Quantum)+1)
	before, err := readCounters(cpu)
	if err != nil {
		return nil, nil, err
	}
	for begun := time.Now(); time.Since(begun) < lasts && ctx.Err() == nil && len(quanta) < cap(quanta); {
		at := time.Now()
		work(steps)
		quanta = append(quanta, time.Since(at).Seconds())
	}
	after, err := readCounters(cpu)
	if err != nil {
		return nil, nil, err
	}
	if len(quanta) == 0 {
		return nil, nil, fmt.Errorf("work on CPU %d: %w", cpu, context.Cause(ctx))
	}
	return quanta, after.since(before), nil
}

// stay binds this thread to a CPU.
func stay(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("work on CPU %d: %w", cpu, err)
	}
	return nil
}

// Reach returns an error if this program cannot work on a CPU. It may be able to work on CPUs on
// which the kernel does not put it, such as those isolated at boot.
func Reach(cpu int) error {
	tried := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, as in Probe
		tried <- stay(cpu)
	}()
	return <-tried
}

// sink keeps the compiler from removing the work.
var sink uint64

// work does so many steps that need only the core.
func work(steps int) {
	x := sink | 1
	for range steps {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	sink = x
}

// Calibrate returns how many steps take a Quantum without interruption. Cores that are compared
// must all do the same number.
func Calibrate() int {
	const tries, steps = 50, 100_000
	best := time.Duration(1 << 62)
	for range tries {
		at := time.Now()
		work(steps)
		best = min(best, time.Since(at))
	}
	return max(1, int(float64(steps)*float64(Quantum)/float64(max(best, 1))))
}

// counters are the kernel's counters of one core and of this thread.
type counters struct {
	interrupts map[string]uint64
	waited     float64 // seconds for which this thread could run and others did
	stolen     float64 // seconds for which the hypervisor gave the core to others
	switches   uint64  // involuntary ones of this thread
}

// readCounters reads the counters. Counters that the kernel lacks are 0.
func readCounters(cpu int) (c counters, err error) {
	text, err := os.ReadFile("/proc/interrupts")
	if err != nil {
		return c, fmt.Errorf("look at interrupts: %w", err)
	}
	c.interrupts = interrupts(string(text), cpu)
	text, _ = os.ReadFile("/proc/thread-self/schedstat")
	if words := strings.Fields(string(text)); len(words) > 1 {
		ns, _ := strconv.ParseFloat(words[1], 64)
		c.waited = ns / 1e9
	}
	text, _ = os.ReadFile("/proc/stat")
	c.stolen = stolen(string(text), cpu)
	text, _ = os.ReadFile("/proc/thread-self/status")
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "nonvoluntary_ctxt_switches:"); ok {
			c.switches, _ = strconv.ParseUint(strings.TrimSpace(value), 10, 64)
		}
	}
	return c, nil
}

// interrupts returns a CPU's interrupts by their names. The first line assigns columns to CPUs.
func interrupts(text string, cpu int) map[string]uint64 {
	counts := map[string]uint64{}
	lines := bufio.NewScanner(strings.NewReader(text))
	column, columns := -1, 0
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if columns == 0 {
			columns, column = len(words), slices.Index(words, "CPU"+strconv.Itoa(cpu))
			continue
		}
		if len(words) < 2 || column < 0 || column+1 >= len(words) {
			continue
		}
		n, err := strconv.ParseUint(words[column+1], 10, 64)
		if err != nil {
			continue
		}
		name := strings.TrimSuffix(words[0], ":")
		if len(words) > columns+1 {
			name += " " + strings.Join(words[columns+1:], " ")
		}
		counts[name] = n
	}
	return counts
}

// ticks is the number of ticks per second in /proc/stat, on every kernel for x86-64 and ARM.
const ticks = 100

func stolen(text string, cpu int) float64 {
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) > 8 && words[0] == "cpu"+strconv.Itoa(cpu) {
			n, _ := strconv.ParseFloat(words[8], 64)
			return n / ticks
		}
	}
	return 0
}

// since returns the causes of interruptions since before: those with the most time first, then
// those with the highest count.
func (c counters) since(before counters) (all []Source) {
	all = []Source{
		{Name: "other programs ran", Count: c.switches - before.switches, Seconds: c.waited - before.waited},
		{Name: "stolen by the machine below", Seconds: c.stolen - before.stolen},
	}
	for name, n := range c.interrupts {
		if n > before.interrupts[name] {
			all = append(all, Source{Name: "interrupt " + name, Count: n - before.interrupts[name]})
		}
	}
	all = slices.DeleteFunc(all, func(s Source) bool { return s.Count == 0 && s.Seconds <= 0 })
	sortSources(all)
	return all
}

// CPUs returns the CPUs on which this process may run.
func CPUs() (all []int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, err
	}
	for c := range len(set) * 64 {
		if set.IsSet(c) {
			all = append(all, c)
		}
	}
	return all, nil
}
