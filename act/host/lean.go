package host

import (
	"fmt"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// BecomeWith begins this process again, with the same number and other arguments, and with no capability but some. Capabilities are
// of threads, and a program in Go has several that it does not choose; what a program begins with is of all.
func BecomeWith(args []string, keep ...uintptr) error {
	runtime.LockOSThread()
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if slices.Contains(keep, c) {
			continue
		}
		// EINVAL: the kernel does not know the capability.
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && err != unix.EINVAL {
			return fmt.Errorf("give up capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("refuse new rights: %w", err)
	}
	return unix.Exec("/proc/self/exe", args, os.Environ())
}
