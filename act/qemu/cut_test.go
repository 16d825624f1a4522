package qemu_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"pagurus/act/qemu"
	"pagurus/fleet"
	"pagurus/serve/agent/drivertest"
)

// severed is a line between source and target that is cut after some bytes from the source, or when it is told to be.
type severed struct {
	listener net.Listener
	to       string
	mu       sync.Mutex
	left     int64 // bytes until the cut; negative: any number
	over     bool  // it was cut
	conns    []net.Conn
}

func newSevered(t *testing.T, to string, left int64) *severed {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &severed{listener: l, to: to, left: left}
	t.Cleanup(func() { l.Close(); s.sever() })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			s.mu.Lock()
			if err != nil || s.over {
				near.Close()
				s.mu.Unlock()
				continue
			}
			s.conns = append(s.conns, near, far)
			s.mu.Unlock()
			go func() { _, _ = io.Copy(near, far); near.Close() }()
			go s.carry(near, far)
		}
	}()
	return s
}

// carry passes on what the source sends.
func (s *severed) carry(from, to net.Conn) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			to.Close()
			return
		}
		s.mu.Lock()
		cut := false
		if s.left >= 0 {
			n = int(min(int64(n), s.left))
			s.left -= int64(n)
			cut = s.left == 0
		}
		s.mu.Unlock()
		if _, err := to.Write(buffer[:n]); err != nil {
			from.Close()
			return
		}
		if cut {
			s.sever()
			return
		}
	}
}

// sever cuts the line, for both ends.
func (s *severed) sever() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	for _, c := range s.conns {
		c.Close()
	}
	s.conns = nil
}

// TestLineIsCut: whenever the line between the hosts of a move is cut, exactly one of them can let the guest run, and there it
// goes on.
func TestLineIsCut(t *testing.T) {
	w := newWorld(t)
	tk := task("j1g0")
	both := [2]*qemu.Driver{w.open(t, 0), w.open(t, 1)}
	defer func() {
		for _, d := range both {
			if err := d.Stop(t.Context(), tk.Guest.ID); err != nil {
				t.Error(err)
			}
			d.Close()
		}
	}()
	if err := both[0].Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, both[0], tk.Guest.ID)
	at := 0 // where the guest runs
	for i, c := range []struct {
		what   string
		after  int64 // bytes
		before bool  // the switch begins
		within bool  // the switch, when the guest is suspended
	}{
		{"in the copy", 3 << 20, false, false},
		{"before the switch", -1, true, false},
		{"when it is suspended", -1, false, true},
	} {
		tk.Order.Migration = fleet.MigrationID(fmt.Sprintf("m%d.j1g0", i))
		from, to := both[at], both[1-at]
		listen, err := to.Receive(t.Context(), tk)
		if err != nil {
			t.Fatal(err)
		}
		where, secret, _ := strings.Cut(listen, "/")
		line := newSevered(t, where, c.after)
		tk.Listen = line.listener.Addr().String() + "/" + secret
		err = from.Copy(t.Context(), tk, func(fleet.Progress) {})
		if c.after >= 0 && err == nil || c.after < 0 && err != nil {
			t.Fatalf("%s: the copy ends with %v", c.what, err)
		}
		if err == nil {
			if c.before {
				line.sever()
			}
			for range 10 {
				_, err = from.Switch(t.Context(), tk, func(away bool) {
					if away && c.within {
						line.sever()
					}
				})
				if !errors.Is(err, fleet.ErrUnsure) {
					break
				}
			}
		}
		if !line.over || errors.Is(err, fleet.ErrUnsure) {
			t.Errorf("%s: cut: %t, %v", c.what, line.over, err)
		}
		ends, goesOn := to, from
		if err == nil {
			ends, goesOn, at = from, to, 1-at
		} else if err := to.Resume(t.Context(), tk.Guest.ID); err == nil {
			t.Fatalf("%s: the target runs a guest that has not moved", c.what)
		}
		if err := goesOn.Resume(t.Context(), tk.Guest.ID); err != nil {
			t.Fatalf("%s: it does not go on: %v", c.what, err)
		}
		if err := ends.Stop(t.Context(), tk.Guest.ID); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		drivertest.Healthy(t, goesOn, tk.Guest.ID)
	}
}
