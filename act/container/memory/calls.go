package memory

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	own "pagurus/internal/thread"
)

// Call is a system call that a thread is made to do, for what the kernel lets nobody else
// do for it.
type Call struct {
	Thread    int       `json:"thread"`
	Number    uint64    `json:"number"`
	Arguments [3]uint64 `json:"arguments"`
	Second    []byte    `json:"second,omitempty"` // what the second argument leads to, if it is an address
}

// Calls has threads of a frozen container do system calls before anything else: they are
// traced before thaw lets the container run, and stop on their way out of the kernel. err
// is thaw's; failed says which calls were not done. All threads run on in any case, if
// thaw did what it should.
func Calls(calls []Call, thaw func() error) (failed, err error) {
	if len(calls) == 0 {
		return nil, thaw()
	}
	_ = own.Own(func() error { // whom it traces the thread lets go of at its end
		var wrong []error
		held := map[int]*thread{}
		for _, c := range calls {
			if held[c.Thread] != nil {
				continue
			}
			t, err := traceThread(c.Thread)
			if err != nil {
				wrong = append(wrong, fmt.Errorf("thread %d: %w", c.Thread, err))
				continue
			}
			held[c.Thread] = t
		}
		if err = thaw(); err != nil {
			return nil
		}
		for tid, t := range held {
			if err := t.do(calls); err != nil {
				wrong = append(wrong, fmt.Errorf("thread %d: %w", tid, err))
			}
		}
		failed = errors.Join(wrong...)
		return nil
	})
	return failed, err
}

// holdLimit is how long a thread is waited for that is still traced: by a try before this
// one, whose tracer is about to end.
const (
	holdLimit = 100 * time.Millisecond
	holdAgain = time.Millisecond
)

// traceThread begins to trace a thread, and has it stop when it next could.
func traceThread(tid int) (*thread, error) {
	at, err := findInstruction(tid)
	if err != nil {
		return nil, err
	}
	t := &thread{pid: tid, instruction: at}
	for end := time.Now().Add(holdLimit); ; time.Sleep(holdAgain) {
		if err = t.interrupt(); !errors.Is(err, unix.EPERM) || time.Now().After(end) {
			return t, err
		}
	}
}

// do makes its calls of a thread that is held, and lets it go.
func (t *thread) do(calls []Call) error {
	if err := t.halt(); err != nil {
		return err
	}
	var errs []error
	for _, c := range calls {
		if c.Thread != t.pid {
			continue
		}
		if err := t.make(c); err != nil {
			errs = append(errs, fmt.Errorf("system call %d: %w", c.Number, err))
		}
	}
	return errors.Join(append(errs, t.letGo())...)
}

// make makes a call. What that needs in memory is in a mapping made for it: whatever else
// is there may be in use by other threads.
func (t *thread) make(c Call) error {
	a := c.Arguments
	if len(c.Second) > 0 {
		length := uint64(os.Getpagesize())
		at, err := t.call(unix.SYS_MMAP, 0, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uint64(0))
		if err != nil {
			return fmt.Errorf("make room: %w", err)
		}
		defer func() { _, _ = t.call(unix.SYS_MUNMAP, uint64(at), length) }()
		from, to := []unix.Iovec{iovec(c.Second)}, []unix.RemoteIovec{{Base: uintptr(at), Len: len(c.Second)}}
		if _, err := unix.ProcessVMWritev(t.pid, from, to, 0); err != nil {
			return fmt.Errorf("write an argument: %w", err)
		}
		a[1] = uint64(at)
	}
	_, err := t.call(c.Number, a[:]...)
	return err
}
