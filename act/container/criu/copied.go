package criu

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A lazy dump keeps memory that is not in its images until the page client says that it
// has all of it. If all was copied before, decline says so at once, on a private socket.

// enough is the command that says it, in a request of 32 bytes (criu/page-xfer.c).
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

// validation makes CRIU compare files by their size alone. To compare an ELF file's build
// ID, CRIU would map the beginning of each open file. The kernel kills it if another
// program shortens that file meanwhile. Only CRIU's configuration file has this setting.
const validation = "file-validation filesize\n"

// configure writes CRIU's configuration file, which alone can set some options. The file
// is in memory, because the images' file system may be full. CRIU reads it by path.
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

// decline calls f and then tells CRIU that no memory is wanted. CRIU reads that when its
// images are complete.
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
