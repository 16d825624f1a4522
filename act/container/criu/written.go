package criu

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
)

// What linux/userfaultfd.h says, as far as it is tried.
const (
	uffdUserMode = 1
	uffdAPI      = 0xc018aa3f
	uffdRegister = 0xc020aa00
	uffdVersion  = 0xaa
	uffdFaultWP  = 1 << 0
	uffdUnfilled = 1 << 13 // pages that are not there yet are protected, too
	uffdAsync    = 1 << 15 // a write is noted, and waits for nobody
	uffdProtect  = 1 << 1
)

// tryWritten says whether there is userfaultfd, and whether by it the kernel tells
// which of two pages was written.
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
	look := func() []host.PageRegion {
		scan := host.PageScan{Flags: host.ScanProtect | host.ScanTracked, Start: start, End: start + uint64(len(memory)), Mask: host.PageWritten, Give: host.PageWritten}
		found, _ := scan.Run(pagemap.Fd(), make([]host.PageRegion, 2)) // none after an error
		return found
	}
	look() // protects both
	memory[os.Getpagesize()] = 1
	second := host.PageRegion{Start: start + uint64(os.Getpagesize()), End: start + uint64(len(memory)), Categories: host.PageWritten}
	found := look()
	return true, len(found) == 1 && found[0] == second && len(look()) == 0
}

func ioctl(fd, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(arg)); errno != 0 {
		return errors.New(errno.Error())
	}
	return nil
}
