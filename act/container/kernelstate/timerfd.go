package kernelstate

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// expired is a timerfd that has expired and was not read yet. CRIU finds no time in it,
// and would restore one that never expires again.
type expired struct {
	Process, FD int
	Left        unix.ItimerSpec // time until it expires next, and its period
	Count       uint64          // how often it has expired
	Flags       int             // flags with which it was set
	Clock       int
}

const (
	timerName = "anon_inode:[timerfd]"
	// setTicks is TFD_IOC_SET_TICKS, which x/sys lacks (linux/timerfd.h).
	setTicks = 0x40085400
	// cancelOnSet is TFD_TIMER_CANCEL_ON_SET.
	cancelOnSet = unix.TFD_TIMER_CANCEL_ON_SET
)

func noteTimers(c *Container) (any, error) {
	var all []expired
	for _, p := range c.Processes {
		files, err := p.Files()
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			if f.Name != timerName {
				continue
			}
			if e, err := p.timer(f.FD); err != nil {
				return nil, err
			} else if e.Count > 0 && e.Left.Interval != (unix.Timespec{}) {
				all = append(all, e)
			}
		}
	}
	if all == nil {
		return nil, nil
	}
	return all, nil
}

// timer reads a timerfd. Reading its time also starts the next period of an expired one, and the
// kernel updates its count.
func (p Process) timer(fd int) (e expired, err error) {
	e = expired{Process: p.Inside, FD: fd}
	ours, err := p.Borrow(fd)
	if err != nil {
		return e, err
	}
	defer unix.Close(ours)
	if err := unix.TimerfdGettime(ours, &e.Left); err != nil {
		return e, fmt.Errorf("read timer %d of process %d in the container: %w", fd, p.Inside, err)
	}
	text, err := os.Open(fmt.Sprintf("/proc/%d/fdinfo/%d", p.PID, fd))
	if err != nil {
		return e, fmt.Errorf("read timer %d of process %d in the container: %w", fd, p.Inside, err)
	}
	defer text.Close()
	for lines := bufio.NewScanner(text); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		switch name {
		case "ticks":
			_, _ = fmt.Sscan(value, &e.Count)
		case "clockid":
			_, _ = fmt.Sscan(value, &e.Clock)
		case "settime flags":
			_, _ = fmt.Sscanf(strings.TrimSpace(value), "%o", &e.Flags)
		}
	}
	return e, nil
}

func restoreTimers(c *Container, text []byte) error {
	var all []expired
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	for _, e := range all {
		p, ok := c.Process(e.Process)
		if !ok {
			return fmt.Errorf("process %d in the container is not there", e.Process)
		}
		if err := p.rearm(e); err != nil {
			return fmt.Errorf("timer %d of process %d in the container: %w", e.FD, e.Process, err)
		}
	}
	return nil
}

// rearm starts a timer that CRIU has restored without a time.
func (p Process) rearm(e expired) error {
	ours, err := p.Borrow(e.FD)
	if err != nil {
		return err
	}
	defer unix.Close(ours)
	var has unix.ItimerSpec
	if err := unix.TimerfdGettime(ours, &has); err != nil {
		return err
	}
	if has.Value != (unix.Timespec{}) {
		return nil // it expired only after it was recorded, and CRIU knew its time
	}
	want, flags := e.Left, 0
	if want.Value == (unix.Timespec{}) {
		want.Value.Nsec = 1
	}
	if e.Flags&cancelOnSet != 0 { // only an absolute time can have this flag
		flags = unix.TFD_TIMER_ABSTIME | cancelOnSet
		want.Value = unix.NsecToTimespec(time.Now().UnixNano() + want.Value.Nano())
	}
	if err := unix.TimerfdSettime(ours, flags, &want, nil); err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(ours), setTicks, uintptr(unsafe.Pointer(&e.Count))); errno != 0 {
		return errno
	}
	return nil
}
