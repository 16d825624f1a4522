package host

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What a PageScan does with the pages that it finds (include/uapi/linux/fs.h).
const (
	ScanProtect = 1 << 0 // write-protect them
	ScanTracked = 1 << 1 // EPERM where no userfaultfd tracks
)

// The categories of pages (include/uapi/linux/fs.h).
const (
	PageWritten = 1 << 1
	PageOfFile  = 1 << 2
	PagePresent = 1 << 3
	PageSwapped = 1 << 4
	PageZero    = 1 << 5
	PageGuard   = 1 << 8 // Linux 6.15; where it is not known there is none to be found
)

// PageRegion is pages in a row that are alike.
type PageRegion struct{ Start, End, Categories uint64 }

// PageScan is the argument of the kernel's PAGEMAP_SCAN (struct pm_scan_arg), which walks
// over the pages that exist and not over all addresses: some programs have terabytes of
// those. Linux 6.7 and later have it.
type PageScan struct {
	size, Flags, Start, End, WalkEnd uint64
	found                            unsafe.Pointer
	room, most                       uint64
	Inverted, Mask, AnyOf, Give      uint64
}

// Run scans pages from Start on, by /proc/PID/pagemap, and fills found. When it returns,
// WalkEnd says how far it came.
func (s *PageScan) Run(pagemap uintptr, found []PageRegion) ([]PageRegion, error) {
	const pagemapScan = 0xc0606610
	s.size, s.found, s.room = uint64(unsafe.Sizeof(*s)), unsafe.Pointer(&found[0]), uint64(len(found))
	for {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, pagemap, pagemapScan, uintptr(unsafe.Pointer(s)))
		runtime.KeepAlive(found)
		switch errno {
		case 0:
			return found[:n], nil
		case unix.EINTR, unix.EAGAIN: // the runtime's own signals; nothing is lost
		default:
			return nil, errno
		}
	}
}
