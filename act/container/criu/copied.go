package criu

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A lazy dump keeps the memory that it leaves out of its images until whoever
// asks for it says that he has all. If all of it has been copied before, that is
// said at once, on a socket that nobody else has.

// enough is what is said, of 32 bytes as all requests are (criu/page-xfer.c).
const (
	enough       = 0x1023
	requestBytes = 32
)

// makePair makes a socket and its other end.
func makePair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket for criu: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "criu's memory"), os.NewFile(uintptr(fds[1]), "criu's memory"), nil
}

// validation has CRIU compare files by their size alone. To compare an ELF file's build
// ID, too, it maps the beginning of each file it finds open, and the kernel ends it when
// another program shortens that file meanwhile. It can only be told so in its configuration.
const validation = "file-validation filesize\n"

// configure writes CRIU's configuration, by which alone some options can be given. It is
// read by path, in memory, since images may have no room for it.
func configure(options string) (f *os.File, path string, err error) {
	if f, err = Memory("criu's configuration"); err == nil {
		if _, err = f.WriteString(options); err != nil {
			f.Close()
		}
	}
	if err != nil {
		return nil, "", fmt.Errorf("write criu's configuration: %w", err)
	}
	return f, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()), nil
}

// decline tells CRIU that no memory is asked for, after f. CRIU reads it when it
// is done with its images.
func decline(ours *os.File, f func() error) error {
	if f != nil {
		if err := f(); err != nil {
			return err
		}
	}
	request := make([]byte, requestBytes)
	binary.LittleEndian.PutUint32(request, enough)
	if _, err := ours.Write(request); err != nil {
		return fmt.Errorf("tell criu that no memory is wanted: %w", err)
	}
	return nil
}
