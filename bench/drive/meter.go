package drive

import (
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Meter sums the processor time of a measuring program: its own, and that of the commands it
// types, also while they run. For an ended command this includes its start, which disturbs no
// measurement. A nil Meter counts only the program's own time.
type Meter struct {
	mu    sync.Mutex
	ended time.Duration
	runs  map[int]bool // by PID
}

// Used returns the processor time so far.
func (m *Meter) Used() time.Duration {
	all := own()
	if m == nil {
		return all
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	all += m.ended
	for pid := range m.runs {
		all += ofProcess(pid)
	}
	return all
}

// start starts a command and counts it from now on.
func (m *Meter) start(c *exec.Cmd) error {
	err := c.Start()
	if err != nil || m == nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.runs == nil {
		m.runs = map[int]bool{}
	}
	m.runs[c.Process.Pid] = true
	return nil
}

// wait waits for a command that start has started.
func (m *Meter) wait(c *exec.Cmd) error {
	err := c.Wait()
	if m != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.runs, c.Process.Pid)
		m.ended += ofState(c.ProcessState)
	}
	return err
}

// run runs a command to its end.
func (m *Meter) run(c *exec.Cmd) error {
	if err := m.start(c); err != nil {
		return err
	}
	return m.wait(c)
}

func ofState(s *os.ProcessState) time.Duration {
	if s == nil { // waiting for it failed
		return 0
	}
	return s.UserTime() + s.SystemTime()
}

// own returns the processor time of this process.
func own() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// schedulers selects a process's clock with the scheduler's precision: nanoseconds, of all
// threads.
const schedulers = 2

// ofProcess returns the processor time of another process, or 0 if it has ended. The kernel has
// a clock for each process, which needs one call and no text.
func ofProcess(pid int) time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(int32(^pid<<3|schedulers), &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
