package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/xen/line"
)

// onXen reports whether the guest is one of Xen.
func onXen() bool {
	kind, _ := os.ReadFile("/sys/hypervisor/type")
	return strings.TrimSpace(string(kind)) == "xen"
}

// diskDevice is the guest's disk.
func diskDevice() string {
	if onXen() {
		return "/dev/xvda"
	}
	return "/dev/vda"
}

// serveConsole answers on a terminal, which is another one after each move.
func serveConsole() {
	for {
		if err := answerConsole(); err != nil {
			fmt.Println("witness:", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func answerConsole() error {
	tty, err := os.OpenFile("/dev/hvc1", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer tty.Close()
	t, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		return err
	}
	t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(int(tty.Fd()), unix.TCSETS, t); err != nil {
		return err
	}
	for g := line.NewGuest(tty); ; {
		c, err := g.Accept()
		if err != nil {
			return err
		}
		answer(c)
		c.Drain()
	}
}
