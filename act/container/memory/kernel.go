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

// mappingQuery is the argument of the kernel's PROCMAP_QUERY (struct procmap_query,
// include/uapi/linux/fs.h; Linux 6.11).
type mappingQuery struct {
	size, flags, address             uint64
	start, end, rights, page, offset uint64
	inode                            uint64
	_                                [4]uint32
	_                                [2]uint64
}

// wholeMapping extends an area to the bounds that the mappings at its ends have now. maps is
// the process's /proc/PID/maps. A kernel that cannot tell leaves the area as it is.
func wholeMapping(maps uintptr, a area) area {
	const procmapQuery, shared = 0xc0686611, 8
	for _, at := range []uint64{a.start, a.end - 1} {
		q := mappingQuery{address: at}
		q.size = uint64(unsafe.Sizeof(q))
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, maps, procmapQuery, uintptr(unsafe.Pointer(&q)))
		if errno == 0 && q.inode == 0 && q.rights&shared == 0 {
			a = area{min(a.start, q.start), max(a.end, q.end)}
		}
	}
	return a
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
