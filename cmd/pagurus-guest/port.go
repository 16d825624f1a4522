package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/guestlink"
)

// portName is the virtio-serial port of the link to the host's agent.
const portName = "org.pagurus.link"

// servePort serves the host until this process ends.
func servePort(m *member) {
	for onXen() {
		say("link to the host: %v", serveConsole(m))
		time.Sleep(consoleAgain)
	}
	for {
		p, err := openPort()
		if err == nil {
			err = guestlink.Serve(context.Background(), p, m)
			p.file.Close()
		}
		say("link to the host: %v", err)
		time.Sleep(time.Second) // an existing port does not fail; do not spin if one does
	}
}

// port is the guest's end of the link. The kernel reports "end of file" while the host's
// side is not open, which is so after every move until the agent there connects. This type
// ignores end and errors: a Read waits for bytes, a Write for room, however long that takes,
// without polling.
type port struct {
	file *os.File
	raw  syscall.RawConn
}

func openPort() (*port, error) {
	path, err := findPort()
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	file := os.NewFile(uintptr(fd), path)
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("polling %s: %w", path, err)
	}
	return &port{file: file, raw: raw}, nil
}

// findPort finds the port by name; there is no udev to link it.
func findPort() (string, error) {
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return "", err
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err == nil && strings.TrimSpace(string(b)) == portName {
			return "/dev/" + filepath.Base(filepath.Dir(name)), nil
		}
	}
	return "", fmt.Errorf("no virtio-serial port is named %s", portName)
}

// Read waits for bytes from the host.
func (p *port) Read(b []byte) (n int, err error) {
	raw := p.raw.Read(func(fd uintptr) bool {
		n, err = unix.Read(int(fd), b)
		return done(n, err)
	})
	return max(n, 0), errors.Join(raw, err)
}

// Write gives all of b to the host, or fails.
func (p *port) Write(b []byte) (total int, err error) {
	for total < len(b) && err == nil {
		n := 0
		raw := p.raw.Write(func(fd uintptr) bool {
			n, err = unix.Write(int(fd), b[total:])
			return done(n, err)
		})
		total += max(n, 0)
		err = errors.Join(raw, err)
	}
	return total, err
}

// done reports whether a read or write of the port is complete. Otherwise it is repeated
// after the kernel's next event.
func done(n int, err error) bool {
	if err != nil {
		return err != unix.EAGAIN && err != unix.EINTR && err != unix.EPIPE
	}
	return n > 0
}
