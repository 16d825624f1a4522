package memory

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's PAGEMAP_SCAN (include/uapi/linux/fs.h).
const (
	pagemapScan = 0xc0606610

	scanProtect = 1 << 0 // write-protect the pages found
	scanTracked = 1 << 1 // EPERM where no userfaultfd tracks

	isWritten = 1 << 1
	isPresent = 1 << 3
	isSwapped = 1 << 4
	isZero    = 1 << 5
	isGuard   = 1 << 8 // Linux 6.15; older kernels have no guard pages
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

// region is a scan's result: consecutive pages of the same categories.
type region struct{ start, end, categories uint64 }

// scan is the kernel's struct pm_scan_arg.
type scan struct {
	size, flags, start, end, walkEnd, vec, vecLen, maxPages uint64
	inverted, mask, anyOf, give                             uint64
}

// run scans pages from start on and fills found. It sets walkEnd to the address that it
// reached.
func (s *scan) run(pagemap int, found []region) ([]region, error) {
	s.size, s.vec, s.vecLen = uint64(unsafe.Sizeof(*s)), uint64(uintptr(unsafe.Pointer(&found[0]))), uint64(len(found))
	for {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(pagemap), pagemapScan, uintptr(unsafe.Pointer(s)))
		runtime.KeepAlive(found)
		switch errno {
		case 0:
			return found[:n], nil
		case unix.EINTR, unix.EAGAIN: // the Go runtime's signals; nothing is lost
		default:
			return nil, errno
		}
	}
}

// agreeUffd sets a new userfaultfd's API version and features.
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
		s := scan{end: PageBytes, mask: isPresent}
		if guards {
			s.mask, s.inverted = s.mask|isGuard, isGuard
		}
		_, err := s.run(int(pagemap.Fd()), make([]region, 1))
		if err == nil {
			return guards, nil
		}
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTTY) {
			return false, fmt.Errorf("check pages: %w", err)
		}
	}
	return false, ErrUnsupported
}
