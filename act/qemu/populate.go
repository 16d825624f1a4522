// This file gives every page of a process's memory an entry in the page tables, from outside, while the process runs.
//
// It must not know what a guest is. Its test uses the test's own memory.

package qemu

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"
)

// populateAtOnce is how many pages one system call reads, which is the kernel's most.
const populateAtOnce = 1024

// Populate reads one byte of each page of the area. Pages that were never written become the kernel's page of zeros,
// which takes no memory but an entry. Before QEMU write-protects a guest's memory it does the same while the guest is
// suspended, which takes longer the more pages have none.
func (a ramArea) Populate(ctx context.Context) error {
	page := int64(unix.Getpagesize())
	into := make([]byte, populateAtOnce)
	local := []unix.Iovec{{Base: &into[0]}}
	remote := make([]unix.RemoteIovec, 0, populateAtOnce)
	for at := int64(0); at < a.Bytes; {
		if err := ctx.Err(); err != nil {
			return err
		}
		for remote = remote[:0]; at < a.Bytes && len(remote) < populateAtOnce; at += page {
			remote = append(remote, unix.RemoteIovec{Base: a.Start + uintptr(at), Len: 1})
		}
		local[0].SetLen(len(remote))
		if n, err := unix.ProcessVMReadv(a.PID, local, remote, 0); err != nil || n < len(remote) {
			return fmt.Errorf("read %d of %d pages of process %d: %w", n, len(remote), a.PID, err)
		}
	}
	return nil
}
