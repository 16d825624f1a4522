package wire

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"

	"pagurus/fleet"
)

// greeting is the controller's first message.
var greeting = Down{Wanted: &fleet.Wanted{Cluster: "c", Revision: 3}}

// echo greets, then sends every report back as a task.
func echo(ctx context.Context, _ Hello, s *HostSession) error {
	if err := s.Send(ctx, greeting); err != nil {
		return err
	}
	for {
		up, err := s.Receive(ctx)
		if err != nil {
			return nil
		}
		if up.Report != nil {
			s.Send(ctx, Down{Task: &fleet.Task{Order: up.Report.Order}})
		}
	}
}

func attached(t *testing.T, ctx context.Context, s *served) *AgentSession {
	t.Helper()
	a, err := s.client(t).Attach(ctx, Hello{Host: "host1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	if d, err := a.Receive(ctx); err != nil || d.Wanted == nil || d.Wanted.Revision != 3 {
		t.Fatalf("%+v, %v", d, err)
	}
	return a
}

func TestAgentSession(t *testing.T) {
	ctx := limited(t)
	s := serve(t, &world{attach: echo})
	a := attached(t, ctx, s)
	for i := range 500 {
		if err := a.Send(ctx, Up{Report: &fleet.Report{Order: fleet.Order{Attempt: i}}}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 500 {
		d, err := a.Receive(ctx)
		if err != nil || d.Task.Order.Attempt != i {
			t.Fatalf("%d: %+v, %v", i, d, err)
		}
	}
	s.stop()
	if _, err := a.Receive(ctx); err == nil {
		t.Fatal("the end of the controller was not noticed")
	}
	if err := a.Send(ctx, Up{}); err == nil {
		t.Fatal("sent without a receiver")
	}
}

func TestOnlyRootRunsAgents(t *testing.T) {
	ctx, s := limited(t), serve(t, &world{attach: echo})
	_, err := s.userClient(t, 4242).Attach(ctx, Hello{Host: "host1"})
	if status(t, err) != http.StatusForbidden {
		t.Fatal(err)
	}
}

func TestReasonsArrive(t *testing.T) {
	ctx := limited(t)
	long := strings.Repeat("ü", 200)
	s := serve(t, &world{attach: func(ctx context.Context, h Hello, _ *HostSession) error {
		return &Error{Status: 0, Reason: "no " + string(h.Host)}
	}})
	if _, err := s.client(t).Attach(ctx, Hello{Host: "host9"}); err == nil || !strings.Contains(err.Error(), "no host9") {
		t.Errorf("got %v", err)
	}
	// One that is too long for a close frame arrives whole, too, and what is much longer not without end.
	if _, err := s.client(t).Attach(ctx, Hello{Host: fleet.HostID(long)}); err == nil || !strings.HasSuffix(err.Error(), "no "+long) {
		t.Errorf("got %v", err)
	}
	endless := strings.Repeat("ü", partingBytes)
	if _, err := s.client(t).Attach(ctx, Hello{Host: fleet.HostID(endless)}); err == nil || !strings.HasSuffix(err.Error(), "ü…") || !utf8.ValidString(err.Error()) || len(err.Error()) > 2*partingBytes {
		t.Errorf("got %v", err)
	}
}

// TestNonsense: each of these ends the session with a reason, and the controller goes on.
func TestNonsense(t *testing.T) {
	ctx := limited(t)
	s := serve(t, &world{attach: echo})
	c := s.client(t)
	for name, messages := range map[string][]string{
		"no JSON":              {`{"hello":{"host":"h"}}`, `{`},
		"wrong type":           {`{"hello":{"host":"h"}}`, `{"facts":7}`},
		"not a hello":          {`{"facts":{}}`},
		"nothing":              {`{"hello":{"host":"h"}}`, `{}`},
		"two things":           {`{"hello":{"host":"h"}}`, `{"facts":{},"report":{}}`},
		"a list":               {`[]`},
		"more than is allowed": {`{"hello":{"host":"h"}}`, `"` + strings.Repeat("x", upBytes) + `"`},
	} {
		conn, err := c.connect(ctx, "/v1/agent")
		if err != nil {
			t.Fatal(err)
		}
		conn.SetReadLimit(1 << 20)
		for _, m := range messages {
			if err := conn.Write(ctx, websocket.MessageText, []byte(m)); err != nil {
				break // already closed, as it should be
			}
		}
		for err == nil {
			_, _, err = conn.Read(ctx)
		}
		if code := websocket.CloseStatus(err); code != websocket.StatusPolicyViolation && code != websocket.StatusMessageTooBig {
			t.Errorf("%s: %v", name, err)
		}
		conn.CloseNow()
	}
	attached(t, ctx, s)
}

// TestSlowReaderIsNotWaitedFor: with an ended context Send does not wait.
func TestSlowReaderIsNotWaitedFor(t *testing.T) {
	ctx := limited(t)
	refused := make(chan int, 1)
	s := serve(t, &world{attach: func(ctx context.Context, _ Hello, s *HostSession) error {
		gone, cancel := context.WithCancel(ctx)
		cancel()
		big := Down{Wanted: &fleet.Wanted{Cluster: strings.Repeat("x", 1<<10)}}
		for i := range 2 * downQueue {
			if s.Send(gone, big) != nil {
				refused <- i
				return nil
			}
		}
		refused <- -1
		return nil
	}})
	conn, err := s.client(t).connect(ctx, "/v1/agent") // never reads
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if err := conn.Write(ctx, websocket.MessageText, []byte(`{"hello":{"host":"h"}}`)); err != nil {
		t.Fatal(err)
	}
	if n := <-refused; n < downQueue {
		t.Fatalf("refused after %d", n)
	}
}

// TestDeadPeerIsNoticed: a cable is pulled; nothing closes the connection.
func TestDeadPeerIsNoticed(t *testing.T) {
	if testing.Short() {
		t.Skip("takes ten seconds: make test")
	}
	t.Parallel()
	ctx := limited(t)
	over := make(chan struct{})
	s := serve(t, &world{attach: func(ctx context.Context, h Hello, s *HostSession) error {
		defer close(over)
		return echo(ctx, h, s)
	}})
	cable := newCable(t, s.socket)
	a, err := dialed(t, Config{Address: "unix:" + cable.socket}).Attach(ctx, Hello{Host: "host1"})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	a.Receive(ctx)
	cable.pull()
	began := time.Now()
	if _, err := a.Receive(ctx); err == nil {
		t.Fatal("a message from nowhere")
	}
	select {
	case <-over:
	case <-ctx.Done():
		t.Fatal("the controller has not noticed")
	}
	t.Logf("both sides noticed after %v", time.Since(began).Round(time.Second))
}

// cable carries bytes between a client and a controller until it is pulled.
type cable struct {
	socket string
	cut    chan struct{}
}

func newCable(t *testing.T, to string) *cable {
	c := &cable{socket: t.TempDir() + "/cable.sock", cut: make(chan struct{})}
	l, err := net.Listen("unix", c.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("unix", to)
			if err != nil {
				near.Close()
				return
			}
			t.Cleanup(func() { near.Close(); far.Close() })
			go c.carry(near, far)
			go c.carry(far, near)
		}
	}()
	return c
}

func (c *cable) pull() { close(c.cut) }

func (c *cable) carry(from, to net.Conn) {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		select {
		case <-c.cut:
			io.Copy(io.Discard, from)
			return
		default:
		}
		if err != nil {
			to.Close()
			return
		}
		to.Write(b[:n])
	}
}

func TestWatchComesBack(t *testing.T) {
	ctx, cancel := context.WithCancel(limited(t))
	w := &world{changes: make(chan fleet.Snapshot, 10)}
	s := serve(t, w)
	w.changes <- fleet.Snapshot{Revision: 1}
	seen, err := s.client(t).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if got := <-seen; got.Revision != 1 {
		t.Fatalf("%+v", got)
	}
	s.stop()
	w.changes <- fleet.Snapshot{Revision: 2}
	s.start(t)
	if got := <-seen; got.Revision != 2 {
		t.Fatalf("%+v", got)
	}
	cancel()
	for range seen {
	}
}

// TestUserMayWatch: an ordinary user's WebSocket works like root's.
func TestUserMayWatch(t *testing.T) {
	w := &world{changes: make(chan fleet.Snapshot, 1)}
	s := serve(t, w)
	w.changes <- fleet.Snapshot{Revision: 1}
	seen, err := s.userClient(t, 4242).Watch(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := <-seen; got.Revision != 1 {
		t.Fatalf("%+v", got)
	}
}
