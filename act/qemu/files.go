// This file opens what a driver shares with a process that may do little
// and whose folder that process may write in. It does not know what the process
// is. Its tests run on files made for them.

package qemu

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// closeAll closes files that a child has inherited.
func closeAll(all []*os.File) {
	for _, f := range all {
		_ = f.Close()
	}
}

// openTap gives the descriptor of a tap that the overlay has made.
func openTap(name string) (*os.File, error) {
	// Asking the tun device for a name nobody made would make one.
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
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("plug into %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// escapes are what a kernel and its console say to a terminal, not to people.
var escapes = regexp.MustCompile("\x1b\\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")

// tailOf is the last lines of a log, for people. QEMU's account may have put
// anything in the place of a log, so nothing but a plain file is read.
func tailOf(path string, lines int) string {
	const most = 4096
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	} else if info.Size() > most {
		f.Seek(-most, io.SeekEnd)
	}
	text, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return ""
	}
	var all []string
	for _, line := range strings.FieldsFunc(strings.ToValidUTF8(string(text), ""), func(r rune) bool { return r == '\n' || r == '\r' }) {
		if line = strings.TrimSpace(escapes.ReplaceAllString(line, "")); line != "" {
			all = append(all, line)
		}
	}
	return strings.Join(all[max(0, len(all)-lines):], "; ")
}

// shortPath gives a path to a file in dir that fits a UNIX address, however long
// dir is; it is valid until the folder is closed.
func shortPath(dir, file string) (path string, folder *os.File, err error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("open %s: %w", dir, err)
	}
	return filepath.Join("/proc/self/fd", strconv.Itoa(fd), file), os.NewFile(uintptr(fd), dir), nil
}

// lastWords are the last lines of two files, the second in brackets.
func lastWords(own, console string) string {
	const lines = 6
	said, shown := tailOf(own, lines), tailOf(console, lines)
	switch {
	case said == "":
		return shown
	case shown == "":
		return said
	}
	return said + " (console: " + shown + ")"
}
