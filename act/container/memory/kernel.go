package memory

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
)

// The kernel's userfaultfd (include/uapi/linux/userfaultfd.h).
const (
	uffdUserOnly     = 1
	uffdAPI          = 0xc018aa3f
	uffdRegister     = 0xc020aa00
	uffdWriteProtect = 0xc018aa06
	uffdVersion      = 0xaa

	featureUnpopulated = 1 << 13
	featureAsync       = 1 << 15

	registerProtect = 1 << 1
)

// uffdFlags are the flags of every userfaultfd here. Handling the kernel's own faults
// would need a privilege that the process may lack. Asynchronous protection answers no
// faults.
const uffdFlags = unix.O_CLOEXEC | unix.O_NONBLOCK | uffdUserOnly

// agreeUffd agrees with the kernel on what a new userfaultfd is for.
func agreeUffd(uffd int) error {
	arg := struct{ api, features, ioctls uint64 }{api: uffdVersion, features: featureAsync | featureUnpopulated}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(uffd), uffdAPI, uintptr(unsafe.Pointer(&arg)))
	if errno == unix.EINVAL {
		return ErrUnsupported
	}
	if errno != 0 {
		return fmt.Errorf("open a userfaultfd: %w", errno)
	}
	return nil
}

// register makes the userfaultfd track the pages of an area. It may already do so.
func register(uffd int, a area) error {
	arg := struct{ start, length, mode, ioctls uint64 }{a.start, a.end - a.start, registerProtect, 0}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(uffd), uffdRegister, uintptr(unsafe.Pointer(&arg)))
	if errno != 0 {
		return errno
	}
	return nil
}

// forsaken reports whether a userfaultfd's memory has no process any more. Only this call
// distinguishes that from other errors. It changes nothing, because address 0 has no
// page.
func forsaken(uffd int) bool {
	arg := struct{ start, length, mode uint64 }{0, PageBytes, 0}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(uffd), uffdWriteProtect, uintptr(unsafe.Pointer(&arg)))
	return errno == unix.ESRCH
}

// Supported returns nil if this machine's kernel can do everything that a Tracker needs.
// Otherwise the error wraps ErrUnsupported or says what went wrong.
func Supported() error {
	uffd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, uffdFlags, 0, 0)
	if errno == unix.ENOSYS {
		return ErrUnsupported
	}
	if errno != 0 {
		return fmt.Errorf("open a userfaultfd: %w", errno)
	}
	defer func() { _ = unix.Close(int(uffd)) }()
	if err := agreeUffd(int(uffd)); err != nil {
		return err
	}
	_, err := knowsGuards()
	return err
}

// knowsGuards reports whether scans can distinguish guard pages from others.
func knowsGuards() (bool, error) {
	pagemap, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return false, fmt.Errorf("check pages: %w", err)
	}
	defer func() { _ = pagemap.Close() }()
	for _, guards := range []bool{true, false} {
		s := host.PageScan{End: PageBytes, Mask: host.PagePresent}
		if guards {
			s.Mask, s.Inverted = s.Mask|host.PageGuard, host.PageGuard
		}
		_, err := s.Run(pagemap.Fd(), make([]host.PageRegion, 1))
		if err == nil {
			return guards, nil
		}
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTTY) {
			return false, fmt.Errorf("check pages: %w", err)
		}
	}
	return false, ErrUnsupported
}
