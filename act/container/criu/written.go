package criu

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Constants of linux/userfaultfd.h and linux/fs.h.
const (
	uffdUserMode  = 1
	uffdAPI       = 0xc018aa3f
	uffdRegister  = 0xc020aa00
	uffdVersion   = 0xaa
	uffdFaultWP   = 1 << 0
	uffdUnfilled  = 1 << 13 // protects pages that do not exist yet, too
	uffdAsync     = 1 << 15 // a write is recorded and does not wait
	uffdProtect   = 1 << 1
	pagemapScan   = 0xc0606610
	scanProtect   = 1 << 0
	scanAsyncOnly = 1 << 1
	pageWritten   = 1 << 1
)

// scan is struct pm_scan_arg.
type scan struct {
	size, flags, start, end, walkEnd, regions, regionsLen, most uint64
	inverted, mask, anyOf, wanted                               uint64
}

// region is struct page_region.
type region struct{ start, end, categories uint64 }

// tryWritten reports whether userfaultfd exists, and whether the kernel can report with
// it which of two pages was written.
func tryWritten() (faults, written bool) {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK|uffdUserMode, 0, 0)
	if errno != 0 {
		return false, false
	}
	defer unix.Close(int(fd))
	memory, err := unix.Mmap(-1, 0, 2*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return true, false
	}
	defer unix.Munmap(memory)
	start := uint64(uintptr(unsafe.Pointer(&memory[0])))
	api := [3]uint64{uffdVersion, uffdFaultWP | uffdUnfilled | uffdAsync, 0}
	register := [4]uint64{start, uint64(len(memory)), uffdProtect, 0}
	if ioctl(fd, uffdAPI, unsafe.Pointer(&api)) != nil || ioctl(fd, uffdRegister, unsafe.Pointer(&register)) != nil {
		return true, false
	}
	pagemap, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return true, false
	}
	defer pagemap.Close()
	look := func() []region {
		var found [2]region
		arg := scan{flags: scanProtect | scanAsyncOnly, start: start, end: start + uint64(len(memory)),
			regions: uint64(uintptr(unsafe.Pointer(&found[0]))), regionsLen: uint64(len(found)), mask: pageWritten, wanted: pageWritten}
		arg.size = uint64(unsafe.Sizeof(arg))
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, pagemap.Fd(), pagemapScan, uintptr(unsafe.Pointer(&arg)))
		if errno != 0 {
			return nil
		}
		return found[:min(int(n), len(found))]
	}
	look() // protects both
	memory[os.Getpagesize()] = 1
	second := region{start + uint64(os.Getpagesize()), start + uint64(len(memory)), pageWritten}
	found := look()
	return true, len(found) == 1 && found[0] == second && len(look()) == 0
}

func ioctl(fd, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(arg)); errno != 0 {
		return errors.New(errno.Error())
	}
	return nil
}
