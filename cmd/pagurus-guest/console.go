package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/guestlink"
	"pagurus/act/xen/line"
)

// consoleDevice is the terminal that is a Xen guest's link to its host. Its kernel makes a new one after every move.
const consoleDevice = "/dev/hvc1"

// consoleAgain is for the kernel to make it.
const consoleAgain = 20 * time.Millisecond

// serveConsole serves the host until the terminal is gone.
func serveConsole(m *member) error {
	tty, err := openConsole()
	if err != nil {
		return err
	}
	defer tty.Close()
	for g := line.NewGuest(tty); ; {
		c, err := g.Accept()
		if err != nil {
			return fmt.Errorf("%s: %w", consoleDevice, err)
		}
		if err := guestlink.Serve(context.Background(), c, m); err != nil {
			say("link to the host: %v", err)
		}
		c.Drain()
	}
}

// openConsole opens the terminal, once the kernel has it, so that it passes every byte as it is.
func openConsole() (*os.File, error) {
	for {
		fd, err := unix.Open(consoleDevice, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			err = makeRaw(fd)
			if err == nil {
				return os.NewFile(uintptr(fd), consoleDevice), nil
			}
			unix.Close(fd)
		}
		if err != unix.ENODEV && err != unix.ENXIO && err != unix.ENOENT && err != unix.EIO {
			return nil, fmt.Errorf("opening %s: %w", consoleDevice, err)
		}
		time.Sleep(consoleAgain)
	}
}

// makeRaw has a terminal neither change nor echo anything (cfmakeraw(3)).
func makeRaw(fd int) error {
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return err
	}
	t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	t.Cflag = t.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	return unix.IoctlSetTermios(fd, unix.TCSETS, t)
}
