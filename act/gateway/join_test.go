package gateway

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/time/rate"
)

// pair is a connection on this machine.
func pair(t *testing.T) (here, there *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a.(*net.TCPConn), b.(*net.TCPConn)
}

// TestBrokenIsNotEnded: a connection that breaks on one side breaks on the other. One that ends, ends there.
func TestBrokenIsNotEnded(t *testing.T) {
	for _, breaks := range []bool{true, false} {
		guest, near := pair(t)
		far, server := pair(t)
		over := make(chan struct{})
		go func() {
			defer close(over)
			(&outside{bytes: rate.NewLimiter(rate.Inf, copyBytes)}).join(farEnd{near}, farEnd{far})
		}()
		if _, err := server.Write([]byte("half")); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 4)
		if _, err := io.ReadFull(guest, b); err != nil {
			t.Fatal(err)
		}
		if breaks {
			_ = server.SetLinger(0)
		}
		_ = server.Close()
		_ = guest.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := guest.Read(b); errors.Is(err, syscall.ECONNRESET) != breaks || errors.Is(err, io.EOF) == breaks {
			t.Errorf("breaks %t: the guest reads %v", breaks, err)
		}
		_ = guest.Close()
		<-over
	}
}
