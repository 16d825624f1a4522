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
	table = 1 << 18 // of 4 bytes each
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

// rate is millions of steps in a second of CPU.
func (d done) rate() float64 { return d.Work / d.CPU / 1e6 }

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
	runtime.GC()           // one that is under way would wait for this thread
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

// What follows is between a worker's begin and its end. None of it may be split: a
// function that may is where the language's own scheduler interrupts, has another
// thread choose what is next, and lets this one sleep meanwhile.

// walk does some steps, each of which depends on the one before.
//
//go:nosplit
func walk(t *[table]uint32, at uint32, n int) uint32 {
	for range n {
		at = (t[at&(table-1)] ^ at) * 0x9e3779b1
		at ^= at >> 15
	}
	return at
}

// field is what walk walks about in.
func field() *[table]uint32 {
	t := new([table]uint32)
	for i := range t {
		t[i] = uint32(i) * 0x85ebca6b
	}
	return t
}

// kept keeps work from being left out by the compiler.
var kept uint32

// spin works all the time. What it did before begin does not count.
func spin(begin, lasts int64) done {
	n, used := spinning(field(), begin, begin+lasts)
	return done{Work: float64(n), CPU: float64(used) / 1e9}
}

//go:nosplit
func spinning(t *[table]uint32, begin, end int64) (n int, used int64) {
	until(begin - int64(warm))
	for now() < begin {
		kept = walk(t, kept, steps)
	}
	used = clock(unix.CLOCK_THREAD_CPUTIME_ID)
	for now() < end {
		kept = walk(t, kept, steps)
		n += steps
	}
	return n, clock(unix.CLOCK_THREAD_CPUTIME_ID) - used
}

// sleep wakes up again and again, at times that have nothing to do with the
// kernel's ticks, and works a little. It says how late it was.
func sleep(begin, lasts int64) (d done, err error) {
	late := make([]float64, 2*lasts/int64(nap)+2)
	n, used := sleeping(field(), late, begin, begin+lasts)
	late = late[:n]
	mean, err := stats.Mean(late, 0.95)
	if err != nil {
		return d, fmt.Errorf("it woke up %d times: %w", n, err)
	}
	slices.Sort(late)
	last := late[int(math.Ceil(0.99*float64(n)))-1]
	return done{Work: float64(n * burst), CPU: float64(used) / 1e9, WakeMean: mean.Value, WakeLast: last}, nil
}

//go:nosplit
func sleeping(t *[table]uint32, late []float64, begin, end int64) (n int, used int64) {
	source := uint32(begin) | 1
	used = clock(unix.CLOCK_THREAD_CPUTIME_ID)
	for at := begin; at < end && n < len(late); n++ {
		until(at)
		late[n] = max(1e-9, float64(now()-at)/1e9)
		kept = walk(t, kept, burst)
		source ^= source << 13
		source ^= source >> 17
		source ^= source << 5
		at = max(at, now()) + int64(nap)/2 + int64(source)%int64(nap)
	}
	return n, clock(unix.CLOCK_THREAD_CPUTIME_ID) - used
}

//go:nosplit
func now() int64 { return clock(unix.CLOCK_MONOTONIC) }

//go:nosplit
func clock(which uintptr) int64 {
	var t unix.Timespec
	_, _, _ = syscall.RawSyscall(unix.SYS_CLOCK_GETTIME, which, uintptr(unsafe.Pointer(&t)), 0)
	return t.Sec*1e9 + t.Nsec
}

// until sleeps until the monotonic clock shows at.
//
//go:nosplit
func until(at int64) {
	t := unix.Timespec{Sec: at / 1e9, Nsec: at % 1e9}
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
