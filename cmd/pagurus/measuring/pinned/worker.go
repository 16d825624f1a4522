package pinned

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pagurus/measure/stats"
)

// The kinds of work.
const (
	spins  = "spins"  // it wants all it can get
	sleeps = "sleeps" // it wants a little again and again, at once
)

const (
	// warm is how long workers work before anything counts: who begins first
	// is then forgotten.
	warm = 200 * time.Millisecond
	// table is what the work walks about in: more than the nearest caches hold,
	// so that a turn of the other one costs what it would cost a real program.
	table = 1 << 18 // of 4 bytes
	// steps are done between two looks at the clock.
	steps = 4096
	// nap and burst are what a worker that sleeps does.
	nap   = 5 * time.Millisecond
	burst = 10 * steps
)

// done is what a worker says of itself.
type done struct {
	Work     float64 `json:"work"` // steps
	CPU      float64 `json:"cpu_s"`
	WakeMean float64 `json:"wake_mean_s,omitempty"` // from when it wanted the core to when it had it
	WakeLast float64 `json:"wake_p99_s,omitempty"`  // of a hundred, the last but one
}

// Work is what a worker does, in a process of its own: it is told the kind and the
// CPU, says that it is ready, reads when to begin and for how long to work, by the
// machine's monotonic clock in nanoseconds, and says what it has done. Its other
// threads stay where they are.
func Work(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 2 {
		return errors.New("a worker is told what to do and where")
	}
	cpu, err := strconv.Atoi(args[1])
	if err != nil || args[0] != spins && args[0] != sleeps {
		return fmt.Errorf("%q is no work", args)
	}
	debug.SetGCPercent(-1)
	runtime.LockOSThread() // and never unlocked
	if err := settle(cpu); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, ready); err != nil {
		return err
	}
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil {
		return err
	}
	var begin, lasts int64
	if _, err := fmt.Sscan(line, &begin, &lasts); err != nil {
		return fmt.Errorf("when to work: %w", err)
	}
	var d done
	if args[0] == spins {
		d = spin(begin, lasts)
	} else if d, err = sleep(begin, lasts); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(d)
}

// ready is what a worker says when it waits for its time.
const ready = "ready"

// settle keeps this thread on a CPU, in the class of normal programs, of which alone
// time slices are, and has it woken without delay.
func settle(cpu int) error {
	var one unix.CPUSet
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("work on CPU %d: %w", cpu, err)
	}
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr}, 0); err != nil {
		return fmt.Errorf("work as a normal program: %w", err)
	}
	return unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
}

// walk does some steps, each of which depends on the one before.
func walk(t []uint32, at uint32, n int) uint32 {
	for range n {
		at = (t[at&(table-1)] ^ at) * 0x9e3779b1
		at ^= at >> 15
	}
	return at
}

// field is what walk walks about in.
func field() []uint32 {
	t := make([]uint32, table)
	for i := range t {
		t[i] = uint32(i) * 0x85ebca6b
	}
	return t
}

// kept keeps work from being left out by the compiler.
var kept uint32

// spin works all the time. What it did before begin does not count.
func spin(begin, lasts int64) (d done) {
	t := field()
	until(begin - int64(warm))
	for now() < begin {
		kept = walk(t, kept, steps)
	}
	used, n := clock(unix.CLOCK_THREAD_CPUTIME_ID), 0
	for now() < begin+lasts {
		kept = walk(t, kept, steps)
		n += steps
	}
	return done{Work: float64(n), CPU: float64(clock(unix.CLOCK_THREAD_CPUTIME_ID)-used) / 1e9}
}

// sleep wakes up again and again, at times that have nothing to do with the
// kernel's ticks, and works a little. It says how late it was.
func sleep(begin, lasts int64) (d done, err error) {
	t := field()
	source := uint32(begin) | 1
	var late []float64
	n := 0
	used := clock(unix.CLOCK_THREAD_CPUTIME_ID)
	for at := begin; at < begin+lasts; {
		until(at)
		late = append(late, max(1e-9, float64(now()-at)/1e9))
		kept = walk(t, kept, burst)
		n += burst
		source ^= source << 13
		source ^= source >> 17
		source ^= source << 5
		at = max(at, now()) + int64(nap)/2 + int64(source)%int64(nap)
	}
	mean, err := stats.Mean(late, 0.95)
	if err != nil {
		return d, fmt.Errorf("it woke up %d times: %w", len(late), err)
	}
	slices.Sort(late)
	last := late[int(math.Ceil(0.99*float64(len(late))))-1]
	return done{Work: float64(n), CPU: float64(clock(unix.CLOCK_THREAD_CPUTIME_ID)-used) / 1e9, WakeMean: mean.Value, WakeLast: last}, nil
}

// The kernel is called without telling the language's own scheduler, which would
// take the time for a chance to do something else.

func now() int64 { return clock(unix.CLOCK_MONOTONIC) }

func clock(which uintptr) int64 {
	var t unix.Timespec
	_, _, _ = syscall.RawSyscall(unix.SYS_CLOCK_GETTIME, which, uintptr(unsafe.Pointer(&t)), 0)
	return t.Nano()
}

// until sleeps until the monotonic clock shows at.
func until(at int64) {
	t := unix.NsecToTimespec(at)
	for {
		_, _, e := syscall.RawSyscall6(unix.SYS_CLOCK_NANOSLEEP, unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, uintptr(unsafe.Pointer(&t)), 0, 0, 0)
		if e != unix.EINTR {
			return
		}
	}
}

// read reads what workers have said of themselves.
func read(text string) (all []done, err error) {
	lines := json.NewDecoder(strings.NewReader(text))
	for lines.More() {
		var d done
		if err := lines.Decode(&d); err != nil {
			return nil, fmt.Errorf("a worker said %q: %w", text, err)
		}
		all = append(all, d)
	}
	if len(all) != 2 || !(all[0].CPU > 0) || !(all[1].CPU > 0) {
		return nil, fmt.Errorf("the two workers said %q", text)
	}
	return all, nil
}
