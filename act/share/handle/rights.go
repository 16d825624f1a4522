package handle

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// held are a guard's capabilities. They are used for one call at a time.
type held [2]unix.CapUserData

var header = unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}

// rights are those of this thread.
func rights() (h held, err error) {
	own := header
	if err := unix.Capget(&own, &h[0]); err != nil {
		return h, fmt.Errorf("ask for the guard's rights: %w", err)
	}
	return h, nil
}

// keepFromOthers keeps the rights from programs that this thread starts, and this thread from using them until it says so.
func (h held) keepFromOthers() error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("keep the guard's rights from the server: %w", err)
	}
	for i := range h {
		h[i].Inheritable = 0
	}
	return h.use()
}

// use makes these of the guard's rights this thread's effective ones.
func (h held) use(caps ...int) error {
	for i := range h {
		h[i].Inheritable, h[i].Effective = 0, 0
	}
	for _, c := range caps {
		h[c/32].Effective |= h[c/32].Permitted & (1 << (c % 32))
	}
	own := header
	return unix.Capset(&own, &h[0])
}

// with does something with some of the rights.
func (h held) with(do func() error, caps ...int) error {
	if err := h.use(caps...); err != nil {
		return err
	}
	err := do()
	if wrong := h.use(); wrong != nil {
		panic(wrong) // a thread that has more rights than it should
	}
	return err
}
