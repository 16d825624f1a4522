package interrupted

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Mend changes the registers of threads in images according to the waits that NoteWaits and Again recorded: change has a
// function alter those of the thread with a number inside. The processes must still be suspended.
func (s *Seen) Mend(change func(thread int, alter func(*unix.PtraceRegs) bool) error) error {
	for _, t := range s.threads {
		if t.signals {
			continue
		}
		if err := change(t.inside, t.mend); err != nil {
			return fmt.Errorf("let thread %d go on waiting: %w", t.inside, err)
		}
	}
	return nil
}

// mend has a thread make its call again whose wait was cut short, and reports whether it has to.
func (t *thread) mend(r *unix.PtraceRegs) bool {
	if int64(r.Orig_rax) < 0 || r.Rip != t.call.at || t.call.number == unix.SYS_RESTART_SYSCALL || !t.cutShort(r) {
		return false
	}
	back(r, t.again())
	return true
}

// again returns the call by which a thread continues to wait.
func (t *thread) again() call {
	c := t.call
	switch c.number {
	case unix.SYS_NANOSLEEP:
		return t.sleeping(c.arguments[0], c.arguments[1])
	case unix.SYS_CLOCK_NANOSLEEP:
		clock := c.arguments[0]
		if c.arguments[1]&unix.TIMER_ABSTIME == 0 && (clock == unix.CLOCK_REALTIME || clock == unix.CLOCK_MONOTONIC || clock == unix.CLOCK_BOOTTIME) {
			return t.sleeping(c.arguments[2], c.arguments[3])
		}
	case unix.SYS_POLL:
		c.arguments[2] = rest(c.arguments[2], t.slept)
	case unix.SYS_EPOLL_WAIT, unix.SYS_EPOLL_PWAIT:
		c.arguments[3] = rest(c.arguments[3], t.slept)
	}
	return c
}

// rest returns the remaining milliseconds of a wait. A limit of 0 or less stays as it is.
func rest(limit uint64, slept time.Duration) uint64 {
	ms := int32(limit)
	if ms <= 0 {
		return limit
	}
	return uint64(max(0, int64(ms)-slept.Milliseconds()))
}

// sleeping returns a call for the rest of a sleep. If asked to, the kernel has written the
// remaining time to the program's memory. The time goes into a register, by poll. The program
// may use its own variable for something else, and no other memory is safe.
func (t *thread) sleeping(whole, left uint64) call {
	c := t.call
	var d time.Duration
	if left != 0 {
		d = duration(t.pid, left)
	} else if d = duration(t.pid, whole); t.slept < d {
		d -= t.slept
	} else if d > 0 {
		d = 0
	}
	ms := (d + time.Millisecond - 1).Milliseconds()
	if d < 0 || ms > math.MaxInt32 || t.foreign {
		return c // it sleeps the whole time again
	}
	c.number, c.arguments = unix.SYS_POLL, [6]uint64{0, 0, uint64(ms)}
	return c
}

// duration reads a struct timespec. It returns a negative value if there is none.
func duration(pid int, at uint64) time.Duration {
	text := make([]byte, 16)
	if memory(pid, at, text) != nil {
		return -1
	}
	sec, nsec := int64(binary.LittleEndian.Uint64(text)), int64(binary.LittleEndian.Uint64(text[8:]))
	if sec < 0 || nsec < 0 || nsec >= 1e9 || sec > math.MaxInt32 {
		return -1
	}
	return time.Duration(sec)*time.Second + time.Duration(nsec)
}
