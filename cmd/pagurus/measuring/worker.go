package measuring

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"pagurus/bench/stats"
)

// done is what a worker says of its guest.
type done struct {
	Work     float64 `json:"work"` // steps
	CPU      float64 `json:"cpu_s"`
	WakeMean float64 `json:"wake_mean_s,omitempty"` // from when it wanted the core to when it had it
	WakeLast float64 `json:"wake_p99_s,omitempty"`  // of a hundred, the last but one
}

// rate is millions of steps in a second of CPU.
func (d done) rate() float64 { return d.Work / d.CPU / 1e6 }

// Work is what a worker does, in a process of its own: it is told the kind and the
// CPU, starts the guest's processes, says their numbers, reads when they shall begin
// and for how long work, by the machine's monotonic clock in nanoseconds, and says
// what the first has done. The guest's processes have one thread each and end with
// the worker.
func Work(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 2 {
		return errors.New("a worker is told what to do and where")
	}
	cpu, err := strconv.Atoi(args[1])
	if err != nil || args[0] != spins && args[0] != sleeps && args[0] != spinsAndNaps {
		return fmt.Errorf("%q is no work", args)
	}
	// None of what a language does beside may happen between a process's beginning
	// and its end.
	debug.SetGCPercent(-1)
	runtime.GC()
	runtime.LockOSThread() // and never unlocked: processes end with the thread that started them
	g, err := found(args[0], cpu)
	if err != nil {
		return err
	}
	defer g.end()
	if _, err := fmt.Fprintln(out, ready, strings.Trim(fmt.Sprint(g.pids), "[]")); err != nil {
		return err
	}
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil {
		return err
	}
	if _, err := fmt.Sscan(line, &g.desk.startNs, &g.desk.lasts); err != nil {
		return fmt.Errorf("when to work: %w", err)
	}
	d, err := g.work(args[0])
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(d)
}

// ready is what a worker says before the numbers of its processes.
const ready = "ready"

// processes are a guest's.
type processes struct {
	pids  []int // the first is the one that works
	desk  *desk
	field *[table]uint32
	gate  *os.File // they begin when it is written to
	wait  *os.File
}

// found starts a guest's processes, which wait at the gate.
func found(kind string, cpu int) (g *processes, err error) {
	g = &processes{field: newField()}
	defer func() {
		if err != nil {
			g.end()
		}
	}()
	memory, err := unix.Mmap(-1, 0, int(unsafe.Sizeof(desk{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return g, fmt.Errorf("share memory with processes: %w", err)
	}
	g.desk = (*desk)(unsafe.Pointer(&memory[0]))
	if g.wait, g.gate, err = os.Pipe(); err != nil {
		return g, err
	}
	// Time slices are of the class of normal programs alone; who sleeps is to be woken
	// without delay. Processes have it from this thread.
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr}, 0); err != nil {
		return g, fmt.Errorf("work as a normal program: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return g, err
	}
	if kind == spinsAndNaps {
		if err := g.add(napping); err != nil {
			return g, err
		}
	}
	var one unix.CPUSet
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return g, fmt.Errorf("work on CPU %d: %w", cpu, err)
	}
	if kind == sleeps {
		err = g.add(sleeping)
	} else {
		err = g.add(spinning)
	}
	slices.Reverse(g.pids)
	return g, err
}

// add starts one.
func (g *processes) add(what int) error {
	pid, e := fork(g.desk, g.field, g.wait.Fd(), what)
	if e != 0 {
		return fmt.Errorf("start a process: %w", e)
	}
	g.pids = append(g.pids, pid)
	return nil
}

// work opens the gate, waits until all have come to their end and reads what the first
// has done.
func (g *processes) work(kind string) (d done, err error) {
	if _, err := g.gate.Write(make([]byte, len(g.pids))); err != nil {
		return d, err
	}
	for len(g.pids) > 0 {
		var status unix.WaitStatus
		if _, err := unix.Wait4(g.pids[0], &status, 0, nil); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil || status != 0 {
			return d, fmt.Errorf("process %d ended with %d: %w", g.pids[0], status, err)
		}
		g.pids = g.pids[1:]
	}
	d = done{Work: float64(g.desk.work), CPU: float64(g.desk.used) / 1e9}
	if kind != sleeps {
		return d, nil
	}
	late := g.desk.late[:g.desk.wakes]
	mean, err := stats.Mean(late, 0.95)
	if err != nil {
		return d, fmt.Errorf("it woke up %d times: %w", len(late), err)
	}
	slices.Sort(late)
	d.WakeMean, d.WakeLast = mean.Value, late[int(math.Ceil(0.99*float64(len(late))))-1]
	return d, nil
}

// end ends processes that are there still.
func (g *processes) end() {
	for _, pid := range g.pids {
		_ = unix.Kill(pid, unix.SIGKILL)
		_, _ = unix.Wait4(pid, nil, 0, nil)
	}
}

// read reads what two workers have said.
func read(text string) (all []done, err error) {
	lines := json.NewDecoder(strings.NewReader(text))
	for lines.More() {
		var d done
		if err := lines.Decode(&d); err != nil {
			return nil, fmt.Errorf("a worker said %q: %w", text, err)
		}
		all = append(all, d)
	}
	if len(all) != 2 || !(all[0].CPU > 0) && !(all[1].CPU > 0) {
		return nil, fmt.Errorf("the two workers said %q", text)
	}
	return all, nil
}
