package interrupted

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	own "pagurus/internal/thread"
)

// A thread that runs, or waits in a system call, stops in about 0.1 ms. One that hangs in the kernel is
// left alone: it waits all the time for stopLimit, and does not run. On a busy machine one may only lack a
// processor, or wait for another that lacks one. It has until starvedLimit. In the first stopQuick
// nobody looks.
const (
	stopQuick    = 2 * time.Millisecond
	stopLimit    = 250 * time.Millisecond
	starvedLimit = 5 * time.Second
)

// Stopping watches a thread that was told to stop and has not stopped.
type Stopping struct {
	tid         int
	told, since time.Time // since: it has been in the same wait
	wait        string    // its state, and the time for which it has run
}

// NewStopping is for a thread that is told to stop now.
func NewStopping(tid int) *Stopping { return &Stopping{tid: tid, told: time.Now()} }

// Hangs reports whether the thread will not stop soon.
func (s *Stopping) Hangs() bool {
	now := time.Now()
	if now.Sub(s.told) < stopQuick {
		return false
	}
	folder := fmt.Sprintf("/proc/%d/", s.tid)
	text, _ := os.ReadFile(folder + "stat")
	_, rest, _ := strings.Cut(string(text[max(0, bytes.LastIndexByte(text, ')')):]), " ")
	wait := rest[:min(len(rest), 1)] + ran(folder)
	if wait != s.wait || !strings.ContainsAny(wait[:min(len(wait), 1)], "DS") {
		s.wait, s.since = wait, now
	}
	return now.Sub(s.since) > stopLimit || now.Sub(s.told) > starvedLimit
}

// Continue makes a suspended container run again where it is, given its first process.
// Some waits would end with EINTR only because the container was suspended or CRIU held
// it; each such thread makes its call again. thaw lets the container run. seen is what
// was recorded of the waits; nil: nothing, and their times start again.
//
// Continue returns thaw's error. A thread that it cannot mend continues with EINTR.
func Continue(first int, seen *Seen, thaw func() error) (err error) {
	_ = own.Own(func() error { // when this thread ends, the threads that it traces continue
		var held []*thread
		for _, t := range threads(first) {
			if restarts[t.call.number] || t.signals || t.stopped() {
				continue
			}
			if seen != nil {
				t.slept = seen.of(t)
			}
			if unix.PtraceSeize(t.tid) == nil && unix.PtraceInterrupt(t.tid) == nil {
				held = append(held, t)
			}
		}
		if err = thaw(); err != nil {
			return nil
		}
		for _, t := range held {
			t.resume()
		}
		return nil
	})
	return err
}

// restarts lists the waits that the kernel itself continues for the rest of their time.
var restarts = map[uint64]bool{
	unix.SYS_NANOSLEEP: true, unix.SYS_CLOCK_NANOSLEEP: true, unix.SYS_POLL: true, unix.SYS_FUTEX: true, unix.SYS_RESTART_SYSCALL: true,
}

// of returns how long a thread has waited, from the records made before CRIU held it.
func (s *Seen) of(t *thread) time.Duration {
	before := s.threads[t.tid]
	if before == nil || before.call != t.call || before.slept == 0 {
		return 0
	}
	if !s.suspended && before.ran != t.ran {
		return 0 // it has run since, and this may be another wait
	}
	return before.slept + time.Since(s.at)
}

// stopped reports whether a signal has stopped the thread. It is not traced, because a trace
// would last until it is continued, and then its calls end with EINTR, as signal(7) says.
func (t *thread) stopped() bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/stack", t.pid, t.tid))
	return strings.Contains(string(text), "do_signal_stop")
}

// resume waits until a traced thread stops, makes it repeat its call, and releases it.
func (t *thread) resume() {
	signal := 0
	for stopping := NewStopping(t.tid); ; {
		var status unix.WaitStatus
		got, err := unix.Wait4(t.tid, &status, unix.WNOHANG|unix.WALL, nil)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR), got == t.tid && !status.Stopped(), got != t.tid && stopping.Hangs():
			return // it has ended, or hangs in the kernel
		case got != t.tid:
			nap := unix.NsecToTimespec(30_000)
			_ = unix.Nanosleep(&nap, nil)
			continue
		}
		if status>>16 == unix.PTRACE_EVENT_STOP {
			break
		}
		// A signal came first. The thread receives it and stops afterwards.
		signal = int(status >> 8 & 0xff)
		if unix.PtraceCont(t.tid, signal) != nil {
			return
		}
	}
	var r unix.PtraceRegs
	if unix.PtraceGetRegs(t.tid, &r) == nil && t.repeat(&r) {
		_ = unix.PtraceSetRegs(t.tid, &r)
	}
	_ = unix.PtraceDetach(t.tid)
}

// Resume changes the registers of a stopped thread that continues at once. It makes the
// thread repeat a call that would end with EINTR only because it was stopped. The call's
// time starts again.
func Resume(tid int, r *unix.PtraceRegs) {
	t := thread{pid: tid, tid: tid, call: call{number: r.Orig_rax, arguments: [6]uint64{r.Rdi, r.Rsi, r.Rdx, r.R10, r.R8, r.R9}}}
	t.repeat(r)
}

// repeat changes the registers of a stopped thread so that it repeats its call for the rest of
// its time. It reports whether it did.
func (t *thread) repeat(r *unix.PtraceRegs) bool {
	t.status(fmt.Sprintf("/proc/%d/task/%d/", t.pid, t.tid))
	if t.inside == 0 || t.signals || r.Orig_rax != t.call.number || r.Orig_rax == unix.SYS_RESTART_SYSCALL || !waits[r.Orig_rax] || !t.cutShort(r) {
		return false
	}
	back(r, t.again())
	return true
}

// cutShort reports whether a thread has just left a system call with EINTR.
func (t *thread) cutShort(r *unix.PtraceRegs) bool {
	code := make([]byte, 2)
	return int64(r.Rax) == -int64(unix.EINTR) && memory(t.tid, r.Rip-2, code) == nil && bytes.Equal(code, systemCall)
}

// back has a thread that has left a system call make another.
func back(r *unix.PtraceRegs, a call) {
	r.Rip -= 2
	r.Rax, r.Orig_rax = a.number, math.MaxUint64
	r.Rdi, r.Rsi, r.Rdx, r.R10 = a.arguments[0], a.arguments[1], a.arguments[2], a.arguments[3]
}
