package pages

import (
	"errors"
	"fmt"

	own "pagurus/internal/thread"
)

// Call is a system call that a thread is made to do, for what the kernel lets nobody else
// do for it.
type Call struct {
	Thread   int    `json:"thread"`
	Number   uint64 `json:"number"`
	Argument uint64 `json:"argument"`
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
		held := make([]*thread, len(calls))
		for i, c := range calls {
			t, err := hold(c.Thread)
			if err != nil {
				wrong = append(wrong, fmt.Errorf("thread %d: %w", c.Thread, err))
				continue
			}
			held[i] = t
		}
		if err = thaw(); err != nil {
			return nil
		}
		for i, c := range calls {
			if held[i] == nil {
				continue
			}
			if err := held[i].do(c); err != nil {
				wrong = append(wrong, fmt.Errorf("system call %d of thread %d: %w", c.Number, c.Thread, err))
			}
		}
		failed = errors.Join(wrong...)
		return nil
	})
	return failed, err
}

// hold begins to trace a thread, and has it stop when it next could.
func hold(tid int) (*thread, error) {
	at, err := findInstruction(tid)
	if err != nil {
		return nil, err
	}
	t := &thread{pid: tid, instruction: at}
	return t, t.interrupt()
}

// do makes a call of a thread that is held, and lets it go.
func (t *thread) do(c Call) error {
	if err := t.halt(); err != nil {
		return err
	}
	_, err := t.call(c.Number, uintptr(c.Argument))
	return errors.Join(err, t.letGo())
}
