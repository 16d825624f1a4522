package qemu

import (
	"context"
	"errors"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestPopulate: afterwards every page has an entry, which the kernel shows as a page that is there, and is as it was.
func TestPopulate(t *testing.T) {
	const bytes = 8 << 20
	memory, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(memory)
	memory[3<<20] = 7
	area := ramArea{PID: os.Getpid(), Start: uintptr(unsafe.Pointer(&memory[0])), Bytes: bytes}
	if err := area.Populate(t.Context()); err != nil {
		t.Fatal(err)
	}
	entries := make([]byte, bytes/unix.Getpagesize()*entryBytes)
	pagemap, err := os.Open("/proc/self/pagemap")
	if err != nil {
		t.Fatal(err)
	}
	defer pagemap.Close()
	if _, err := pagemap.ReadAt(entries, int64(area.Start)/int64(unix.Getpagesize())*entryBytes); err != nil {
		t.Fatal(err)
	}
	for at := entryBytes - 1; at < len(entries); at += entryBytes {
		if entries[at]&(present>>56) == 0 {
			t.Fatalf("page %d has no entry", at/entryBytes)
		}
	}
	if memory[3<<20] != 7 || memory[0] != 0 {
		t.Error("the memory has changed")
	}
	over, stop := context.WithCancel(t.Context())
	stop()
	if err := area.Populate(over); !errors.Is(err, context.Canceled) {
		t.Errorf("it goes on: %v", err)
	}
	area.Bytes += 1 << 40
	if err := area.Populate(t.Context()); err == nil {
		t.Error("memory that is not there was read")
	}
}
