// This file opens what a driver shares with an unprivileged process that can write in its
// own folder. It does not know what the process is. Its tests use their own files.

package qemu

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
)

// closeAll closes files that a child has inherited.
func closeAll(all []*os.File) {
	for _, f := range all {
		_ = f.Close()
	}
}

// tapPatience is how long a tap may be in use by a process that is about to end: the first one of a jail whose agent
// was killed before it recorded the process.
const tapPatience = 2 * time.Second

// openTap opens a tap that the overlay has made.
func openTap(name string) (*os.File, error) {
	// Opening an unknown name would create a tap.
	if _, err := net.InterfaceByName(name); err != nil {
		return nil, fmt.Errorf("plug into %s: %w", name, err)
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return nil, fmt.Errorf("plug into %s: %w", name, err)
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("plug into %s: open /dev/net/tun: %w", name, err)
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	for begun := time.Now(); ; time.Sleep(brief) {
		if err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request); !errors.Is(err, unix.EBUSY) || time.Since(begun) > tapPatience {
			break
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("plug into %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// tailOf returns the last lines of a log, for people. QEMU's account may have replaced it
// by a link or a pipe.
func tailOf(path string) string {
	f := host.OpenLog(filepath.Split(path))
	if f == nil {
		return ""
	}
	defer f.Close()
	return host.Tail(f)
}

// lastWords returns the last lines of two files, the second in brackets.
func lastWords(own, console string) string {
	said, shown := tailOf(own), tailOf(console)
	switch {
	case said == "":
		return shown
	case shown == "":
		return said
	}
	return said + " (console: " + shown + ")"
}
