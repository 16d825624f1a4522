package qemu

import (
	"bytes"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mostAtOnce is below what the kernel takes in one call, which is 2 GiB.
const mostAtOnce = 1 << 30

// PageOut has the kernel write an area out to where it can be read from again,
// so that the memory is free. Nothing is lost: whoever touches a page has it
// back. On a machine without swap nothing can be written anywhere and nothing
// happens. After an error part of it may have been written out.
func (a ramArea) PageOut() error {
	if swaps, err := os.ReadFile("/proc/swaps"); err != nil || bytes.Count(swaps, []byte("\n")) < 2 {
		return nil // a heading is all there is
	}
	return a.pageOut()
}

func (a ramArea) pageOut() error {
	pid, err := unix.PidfdOpen(a.PID, 0)
	if err != nil {
		return fmt.Errorf("reach process %d: %w", a.PID, err)
	}
	defer unix.Close(pid)
	for at := int64(0); at < a.Bytes; at += mostAtOnce {
		part := unix.RemoteIovec{Base: a.Start + uintptr(at), Len: int(min(mostAtOnce, a.Bytes-at))}
		_, _, errno := unix.Syscall6(unix.SYS_PROCESS_MADVISE, uintptr(pid), uintptr(unsafe.Pointer(&part)), 1, unix.MADV_PAGEOUT, 0, 0)
		if errno != 0 {
			return fmt.Errorf("write out the memory of process %d: %w", a.PID, errno)
		}
	}
	return nil
}
