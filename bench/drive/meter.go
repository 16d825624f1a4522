package drive

import (
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Meter sums the processor time of a program that measures: its own, and that of the
// commands it types, of those that still run as far as they have got. Who looks after
// they have ended is told of their start as well, which nobody measured suffers from.
// One that is nil knows of the program's own alone.
type Meter struct {
	mu    sync.Mutex
	ended time.Duration
	runs  map[int]bool // by process
}

// Used is all of it so far.
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

// start starts a command, which is counted from now on.
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

// wait waits for a command that was started so.
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
	if s == nil { // it could not be waited for
		return 0
	}
	return s.UserTime() + s.SystemTime()
}

// own is the processor time of this process.
func own() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// schedulers is the kernel's name for a process's clock that counts as its scheduler
// does: to the nanosecond, of all threads.
const schedulers = 2

// ofProcess is that of another one; 0 if it is gone. The kernel has a clock for each,
// which costs one call and no text to read.
func ofProcess(pid int) time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(int32(^pid<<3|schedulers), &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
