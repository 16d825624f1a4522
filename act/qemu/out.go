package qemu

import (
	"bytes"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mostAtOnce is below the kernel's limit for one call, 2 GiB.
const mostAtOnce = 1 << 30

// PageOut makes the kernel write memory to its backing store and free it. Nothing is
// lost: an access reads the page back. On a machine without swap nothing can be written,
// and nothing happens. After an error part of it may have been written.
func (a ramArea) PageOut() error {
	if swaps, err := os.ReadFile("/proc/swaps"); err != nil || bytes.Count(swaps, []byte("\n")) < 2 {
		return nil // there is only the header line
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
