package memory

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	own "pagurus/internal/thread"
)

// Call is a system call that a thread is made to execute, because the kernel lets only
// the thread itself do it.
type Call struct {
	Thread    int       `json:"thread"`
	Number    uint64    `json:"number"`
	Arguments [3]uint64 `json:"arguments"`
	Second    []byte    `json:"second,omitempty"` // what the second argument points to, if it is an address
}

// Calls makes threads of a frozen container execute system calls before anything else.
// The threads are traced before thaw lets the container run, and stop on their way out of
// the kernel. err is thaw's error. failed says which calls were not made. If thaw
// succeeded, all threads continue in any case.
func Calls(calls []Call, thaw func() error) (failed, err error) {
	if len(calls) == 0 {
		return nil, thaw()
	}
	_ = own.Own(func() error { // when this thread ends, the threads that it traces continue
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

// traceThread starts to trace a thread and makes it stop as soon as it can.
func traceThread(tid int) (*thread, error) {
	at, err := findInstruction(tid)
	if err != nil {
		return nil, err
	}
	t := &thread{pid: tid, instruction: at}
	return t, t.interrupt()
}

// do executes the thread's calls and releases the thread.
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

// make executes one call. It makes a mapping for the memory that the call needs, because
// other threads may be using any other memory.
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
