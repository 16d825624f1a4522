package xen

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/xen/bus"
	"pagurus/act/xen/line"
)

// linker carries the link to the guest agent between the guest's console and whoever connects.
type linker struct {
	mu   sync.Mutex
	host *line.Host // nil: the guest's kernel has not taken the console yet
}

// serve carries one connection. A later one ends it.
func (l *linker) serve(conn net.Conn) {
	l.mu.Lock()
	h := l.host
	l.mu.Unlock()
	if h == nil || h.BeginFor(conn) != nil {
		conn.Close()
		return
	}
	defer h.End(conn)
	var b [4096]byte
	for {
		n, err := conn.Read(b[:])
		if err != nil || h.Say(conn, b[:n]) != nil {
			return
		}
	}
}

// have keeps the console of a domain until the warden ends.
func (l *linker) have(life context.Context, store func() (*bus.Store, error), domain int) {
	for life.Err() == nil {
		if err := l.carry(life, store, domain); err != nil {
			fmt.Fprintln(os.Stderr, "the link to the guest agent:", err)
		}
		select {
		case <-life.Done():
		case <-time.After(time.Second):
		}
	}
}

func (l *linker) carry(life context.Context, store func() (*bus.Store, error), domain int) error {
	s, err := store()
	if err != nil {
		return err
	}
	c, err := bus.TakeConsole(life, s, domain)
	if err != nil {
		return err
	}
	defer c.Close()
	h := line.NewHost(c)
	l.mu.Lock()
	l.host = h
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.host = nil
		l.mu.Unlock()
	}()
	return h.Listen(c)
}

// consoleBytes is how much of a guest's first console is kept; the later half of it, or more.
const consoleBytes = 256 << 10

// keepConsole keeps what a guest's kernel says on its first console, which xenconsoled has as a terminal of this host.
func keepConsole(life context.Context, s *bus.Store, domain int) {
	path := ""
	for path == "" {
		path, _ = s.Read(fmt.Sprintf("/local/domain/%d/console/tty", domain)) // xenconsoled writes it when it comes to it
		select {
		case <-life.Done():
			return
		case <-time.After(lookSoon):
		}
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, "the guest's console:", err)
		return
	}
	tty := os.NewFile(uintptr(fd), path)
	defer tty.Close()
	log, err := os.OpenFile(consoleLog, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, "the guest's console:", err)
		return
	}
	defer log.Close()
	_, _ = io.Copy(&bounded{log}, struct{ io.Reader }{tty}) // it ends with the domain
}

// bounded is a log whose older half goes when it is full.
type bounded struct{ file *os.File }

func (b *bounded) Write(p []byte) (int, error) {
	if info, err := b.file.Stat(); err == nil && info.Size()+int64(len(p)) > consoleBytes {
		kept := make([]byte, consoleBytes/2)
		n, _ := b.file.ReadAt(kept, max(0, info.Size()-consoleBytes/2))
		if err := b.file.Truncate(0); err != nil {
			return 0, err
		}
		if _, err := b.file.Write(kept[:n]); err != nil {
			return 0, err
		}
	}
	return b.file.Write(p)
}
