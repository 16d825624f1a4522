package qemu

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Memory with a backing store, here a file, is freed and keeps its content.
func TestPageOutFreesWhatIsKeptElsewhere(t *testing.T) {
	const size = 8 << 20
	dir, err := os.MkdirTemp("/var/tmp", "pageout") // on a disk, because a tmpfs has no backing store
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	f, err := os.Create(filepath.Join(dir, "memory"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(bytes.Repeat([]byte("pagurus!"), size/8)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	memory, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(memory)
	resident := func() (n int) {
		seen := make([]byte, size/os.Getpagesize())
		if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&memory[0])), size, uintptr(unsafe.Pointer(&seen[0]))); errno != 0 {
			t.Fatal(errno)
		}
		for _, b := range seen {
			n += int(b & 1)
		}
		return n
	}
	before := resident()
	if before == 0 {
		t.Fatal("nothing was resident")
	}
	a := ramArea{PID: os.Getpid(), Start: uintptr(unsafe.Pointer(&memory[0])), Bytes: size}
	if err := a.pageOut(); err != nil {
		t.Fatal(err)
	}
	if after := resident(); after > before/4 {
		t.Errorf("of %d pages %d are resident still", before, after)
	}
	if !bytes.Equal(memory[size-16:], []byte("pagurus!pagurus!")) {
		t.Error("it does not hold what it held")
	}
}
