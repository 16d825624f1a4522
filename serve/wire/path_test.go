package wire

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/identity"
)

// path is a rogue between a host and the controller: it sees every byte, and does with each piece what it likes.
type path struct {
	addr string
	mu   sync.Mutex
	seen [2][]byte // towards the controller, and back
}

// meddle gives what is passed on instead of a piece, the n-th in its direction; whole: nothing follows.
type meddle func(back bool, n int, piece []byte) (instead []byte, whole bool)

func newPath(t *testing.T, to string, m meddle) *path {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	p := &path{addr: l.Addr().String()}
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				near.Close()
				return
			}
			go p.carry(near, far, false, m)
			go p.carry(far, near, true, m)
		}
	}()
	return p
}

func (p *path) carry(from, to net.Conn, back bool, m meddle) {
	defer from.Close()
	defer to.Close()
	side := 0
	if back {
		side = 1
	}
	buffer := make([]byte, 64<<10)
	for n := 0; ; n++ {
		k, err := from.Read(buffer)
		if err != nil {
			return
		}
		p.mu.Lock()
		p.seen[side] = append(p.seen[side], buffer[:k]...)
		p.mu.Unlock()
		piece, whole := m(back, n, buffer[:k])
		if _, err := to.Write(piece); err != nil || whole {
			return
		}
	}
}

// Whoever is on the path between an agent and the controller can cut it, and nothing else: of what was sent the
// beginning arrives, unchanged and once.
func TestOnThePath(t *testing.T) {
	const reports = 30
	for what, m := range map[string]func(at int) meddle{
		"flips a bit": func(at int) meddle {
			return func(back bool, n int, piece []byte) ([]byte, bool) {
				if n == at && back == (at%2 == 0) {
					piece[len(piece)/2] ^= 1
				}
				return piece, false
			}
		},
		"sends a piece twice": func(at int) meddle {
			return func(back bool, n int, piece []byte) ([]byte, bool) {
				if n == at && back == (at%2 == 0) {
					return append(append([]byte(nil), piece...), piece...), false
				}
				return piece, false
			}
		},
		"leaves a piece out": func(at int) meddle {
			return func(back bool, n int, piece []byte) ([]byte, bool) {
				if n == at && back == (at%2 == 0) {
					return nil, false
				}
				return piece, false
			}
		},
		"cuts": func(at int) meddle {
			return func(back bool, n int, piece []byte) ([]byte, bool) {
				return piece[:len(piece)/(1+at%2)], n == at
			}
		},
		"delays": func(at int) meddle {
			return func(_ bool, n int, piece []byte) ([]byte, bool) {
				if n >= at {
					time.Sleep(2 * time.Millisecond)
				}
				return piece, false
			}
		},
	} {
		for at := range 10 {
			t.Run(fmt.Sprintf("%s %d", what, at), func(t *testing.T) { t.Parallel(); onThePath(t, m(at), reports, what == "delays") })
		}
	}
}

func onThePath(t *testing.T, m meddle, reports int, arrives bool) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	var came []int
	s := serve(t, &world{attach: func(ctx context.Context, _ Hello, s *HostSession) error {
		_ = s.Send(ctx, greeting)
		for {
			up, err := s.Receive(ctx)
			if err != nil {
				return nil
			}
			if up.Report != nil {
				mu.Lock()
				came = append(came, up.Report.Order.Attempt)
				mu.Unlock()
				_ = s.Send(ctx, Down{Task: &fleet.Task{Order: up.Report.Order}})
			}
		}
	}})
	p := newPath(t, s.addr, m)
	c := dialed(t, Config{Address: p.addr, Credentials: s.credentials(t, identity.Subject{Role: identity.Host, Name: "host1"})})
	back := 0
	dialing, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	if a, err := c.Attach(dialing, Hello{Host: "host1"}); err == nil {
		defer a.Close()
		if d, err := a.Receive(ctx); err != nil || d.Wanted == nil {
			t.Fatalf("the first message is %+v, %v", d, err)
		}
		for i := range reports {
			if a.Send(ctx, Up{Report: &fleet.Report{Order: fleet.Order{Attempt: i}}}) != nil {
				break
			}
			patience := 2 * time.Second // for what may never come
			if arrives {
				patience = 20 * time.Second
			}
			receiving, stop := context.WithTimeout(ctx, patience)
			d, err := a.Receive(receiving)
			stop()
			if err != nil {
				break
			}
			if d.Task == nil || d.Task.Order.Attempt != back {
				t.Fatalf("message %d is %+v", back, d)
			}
			back++
		}
	} else if arrives {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for i, got := range came {
		if got != i {
			t.Fatalf("reports came as %v", came)
		}
	}
	if len(came) < back || arrives && back != reports {
		t.Errorf("%d of %d reports came, %d answers", len(came), reports, back)
	}
}

// A session that was recorded opens nothing when it is sent again.
func TestRecordedSession(t *testing.T) {
	ctx := limited(t)
	var mu sync.Mutex
	calls := 0
	s := serve(t, &world{attach: func(ctx context.Context, h Hello, hs *HostSession) error {
		mu.Lock()
		calls++
		mu.Unlock()
		return echo(ctx, h, hs)
	}})
	p := newPath(t, s.addr, func(_ bool, _ int, piece []byte) ([]byte, bool) { return piece, false })
	c := dialed(t, Config{Address: p.addr, Credentials: s.credentials(t, identity.Subject{Role: identity.Host, Name: "host1"})})
	a, err := c.Attach(ctx, Hello{Host: "host1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Send(ctx, Up{Report: &fleet.Report{}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := a.Receive(ctx); err != nil {
			t.Fatal(err)
		}
	}
	a.Close()
	p.mu.Lock()
	recorded := append([]byte(nil), p.seen[0]...)
	p.mu.Unlock()
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	_, _ = conn.Write(recorded)
	_, _ = io.Copy(io.Discard, conn)
	mu.Lock()
	defer mu.Unlock()
	if calls != 1 {
		t.Errorf("there were %d sessions", calls)
	}
}
