package container_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"pagurus/act/container"
	"pagurus/fleet"
	"pagurus/internal/testkit"
	"pagurus/serve/agent/drivertest"
)

// severed is a line between source and target that is cut at a message, and later mended.
type severed struct {
	at       *testkit.Host // where it is
	listener net.Listener
	to       string
	mu       sync.Mutex
	kind     byte // of the message at which it is cut; 0: not any more
	back     bool // at the target's answer to it
	half     bool // in the middle of it
	cut      bool
	happened bool // it was cut at some time
	conns    []net.Conn
}

func (w *world) newSevered(t *testing.T, host int, to string) *severed {
	t.Helper()
	s := &severed{at: w.hosts[host].net, to: to}
	s.at.Must(func() (err error) {
		s.listener, err = net.Listen("tcp", net.JoinHostPort(w.hosts[host].Addr, "0"))
		return err
	})
	l := s.listener
	t.Cleanup(func() { l.Close(); s.sever() })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			go s.join(near)
		}
	}()
	return s
}

func (s *severed) join(near net.Conn) {
	s.mu.Lock()
	cut := s.cut
	s.mu.Unlock()
	var far net.Conn
	err := s.at.Do(func() (err error) {
		far, err = net.Dial("tcp", s.to)
		return err
	})
	if cut || err != nil {
		near.Close()
		return
	}
	s.mu.Lock()
	s.conns = append(s.conns, near, far)
	s.mu.Unlock()
	asked := make(chan struct{}) // closed when what is asked is on its way
	go s.answers(far, near, asked)
	s.messages(near, far, asked)
}

// messages carries what the source sends (framing.Conn): a kind, a length, a content.
func (s *severed) messages(from, to net.Conn, asked chan struct{}) {
	defer to.Close()
	defer from.Close()
	head := make([]byte, 5)
	for {
		if _, err := io.ReadFull(from, head); err != nil {
			return
		}
		content := make([]byte, binary.BigEndian.Uint32(head[1:]))
		if _, err := io.ReadFull(from, content); err != nil {
			return
		}
		s.mu.Lock()
		here, back, half := s.kind == head[0] && !s.cut, s.back, s.half
		s.mu.Unlock()
		switch {
		case here && back:
			close(asked)
		case here && half:
			_, _ = to.Write(append(head, content[:len(content)/2]...))
			fallthrough
		case here:
			s.sever()
			return
		}
		if _, err := to.Write(append(append([]byte(nil), head...), content...)); err != nil {
			return
		}
	}
}

// answers carries what the target says.
func (s *severed) answers(from, to net.Conn, asked chan struct{}) {
	defer to.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		select {
		case <-asked:
			s.sever()
			return
		default:
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// sever cuts the line, for both ends.
func (s *severed) sever() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut, s.happened = true, true
	for _, c := range s.conns {
		c.Close()
	}
	s.conns = nil
}

func (s *severed) mend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut, s.kind = false, 0
}

// TestLineIsCut: wherever the line between the hosts of a move is cut, exactly one of them can let the guest run, and there
// it goes on.
func TestLineIsCut(t *testing.T) {
	w := newWorld(t)
	tk := task("j1g0")
	source, target := w.open(t, 0), w.open(t, 1)
	defer w.sweep(t, tk.Guest.ID)
	defer func() { source.Close(); target.Close() }()
	if err := source.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, source, tk.Guest.ID)
	at := 0 // where the guest runs: it comes and goes
	both := [2]*container.Driver{source, target}
	for i, c := range []struct {
		what       string
		kind       byte
		back, half bool
		moves      bool // it may have moved
	}{
		{"in the middle of memory", 'P', false, true, false},
		{"in a copy of files", 'T', false, true, false},
		{"at an answer to a round", 'S', true, false, false},
		{"before CRIU's images", 'I', false, false, false},
		{"in the middle of an image", 'C', false, true, false},
		{"before the order to restore", 'R', false, false, false},
		{"at the answer to the order to restore", 'R', true, false, true},
	} {
		tk.Order.Migration = fleet.MigrationID(fmt.Sprintf("m%d.j1g0", i))
		from, to := both[at], both[1-at]
		listen, err := to.Receive(t.Context(), tk)
		if err != nil {
			t.Fatal(err)
		}
		where, word, _ := strings.Cut(listen, "/")
		line := w.newSevered(t, at, where)
		line.kind, line.back, line.half = c.kind, c.back, c.half
		tk.Listen = line.listener.Addr().String() + "/" + word
		moved, err := attempt(t, from, tk, line)
		if !line.happened {
			t.Errorf("%s: it was never cut: %v", c.what, err)
		}
		if err == nil || moved && !c.moves {
			t.Errorf("%s: moved: %t, %v", c.what, moved, err)
		}
		if !moved {
			if err := to.Resume(t.Context(), tk.Guest.ID); err == nil {
				t.Fatalf("%s: the target runs a guest that has not moved", c.what)
			}
			if err := from.Resume(t.Context(), tk.Guest.ID); err != nil {
				t.Fatalf("%s: the source does not go on: %v", c.what, err)
			}
			from, to = to, from
		} else if err := to.Resume(t.Context(), tk.Guest.ID); err != nil {
			t.Fatalf("%s: the target does not go on: %v", c.what, err)
		} else {
			at = 1 - at
		}
		if err := from.Stop(t.Context(), tk.Guest.ID); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		w.lead(t, 0, at)
		drivertest.Healthy(t, to, tk.Guest.ID)
	}
}

// attempt copies and switches as an agent does: what it is unsure of it tries again when the line is there again. err is
// the first error.
func attempt(t *testing.T, d *container.Driver, tk fleet.Task, line *severed) (moved bool, first error) {
	if err := d.Copy(t.Context(), tk, func(fleet.Progress) {}); err != nil {
		return false, err
	}
	_, err := d.Switch(t.Context(), tk, func(bool) {})
	first = err
	for range 20 {
		if !errors.Is(err, fleet.ErrUnsure) {
			break
		}
		line.mend()
		_, err = d.Switch(t.Context(), tk, func(bool) {})
	}
	if errors.Is(err, fleet.ErrUnsure) {
		t.Errorf("it stays unsure: %v", err)
	}
	return err == nil, first
}
