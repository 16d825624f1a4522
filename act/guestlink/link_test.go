package guestlink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"pagurus/fleet"
)

// program is a guest's end of two streams: it echoes changed input, and ends when the
// input is closed.
type program struct {
	mu      sync.Mutex
	in      []byte
	closed  bool
	changed chan struct{}
	base    int64
	setups  []fleet.Setup
	starts  map[string]int
}

func newProgram() *program {
	return &program{changed: make(chan struct{}), starts: map[string]int{}}
}

func (p *program) wake() { close(p.changed); p.changed = make(chan struct{}) }

func (p *program) Setup(_ context.Context, s fleet.Setup) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setups = append(p.setups, s)
	return nil
}

func (p *program) Launch(_ context.Context, prog fleet.Program) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if prog.ID == "bad" {
		return errors.New("no such program")
	}
	if prog.ID == "bug" {
		panic("bug")
	}
	if prog.ID == "unreachable" {
		_, err := (&net.Dialer{Deadline: time.Unix(1, 0)}).Dial("tcp", "127.0.0.1:1")
		return fmt.Errorf("file server did not become available: %w", err)
	}
	p.starts[prog.ID] = 1
	return nil
}

func (p *program) Wait(ctx context.Context, _ string) (fleet.Exit, error) {
	for {
		p.mu.Lock()
		closed, changed := p.closed, p.changed
		p.mu.Unlock()
		if closed {
			return fleet.Exit{Code: 143, Signal: "SIGTERM"}, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fleet.Exit{}, ctx.Err()
		}
	}
}

func (p *program) Read(ctx context.Context, _, _ string, offset int64) ([]byte, bool, error) {
	for {
		p.mu.Lock()
		if offset < p.base {
			p.mu.Unlock()
			return nil, false, errors.New("gone")
		}
		p.base = offset
		var out []byte
		for _, b := range p.in[offset:] {
			out = append(out, b+1)
		}
		closed, changed := p.closed, p.changed
		p.mu.Unlock()
		if len(out) > 0 || closed {
			return out, len(out) == 0, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
}

func (p *program) Write(_ context.Context, _ string, offset int64, data []byte, eof bool) (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := int64(len(p.in))
	if offset <= next && offset+int64(len(data)) >= next && !p.closed {
		fresh := data[next-offset:]
		if len(fresh) > 1000 { // accepts less than it is given
			fresh, eof = fresh[:1000], false
		}
		p.in = append(p.in, fresh...)
		p.closed = eof
		p.wake()
	}
	return int64(len(p.in)), nil
}

func (p *program) Cache(_ context.Context, s fleet.Spare) (fleet.Cache, error) {
	if s == (fleet.Spare{Drop: true, EmptyBytes: 3 << 20}) {
		return fleet.Cache{FreeBytes: 9 << 40}, nil
	}
	return fleet.Cache{CleanBytes: 7}, errors.New("nothing was asked for")
}

func (p *program) Topology(context.Context) (fleet.Topology, error) {
	return fleet.Topology{Level: "x86-64-v3"}, nil
}

func (p *program) Signal(_ context.Context, id string, s fleet.Signal) error {
	if id != "p1" || s.ID != "s1" || s.Number != 10 || !s.Ends || s.Grace != time.Second {
		return fmt.Errorf("%s %+v", id, s)
	}
	return nil
}

func (p *program) Trace(_ context.Context, q fleet.TraceQuery) ([]fleet.Trace, error) {
	out := make([]fleet.Trace, 300)
	for i := range out {
		out[i] = fleet.Trace{Rank: i, At: q.To, Gaps: make([]fleet.Gap, 16)}
	}
	out[7].Gaps = make([]fleet.Gap, 5000) // too large for a frame
	return out, nil
}

func (p *program) Shutdown(context.Context) error { return nil }

// line is a stream to a guest that loses data at random, repeats pieces, and begins and
// ends with garbage: worse than any migration. The guest's side always sees one stream,
// as with a virtio port.
type line struct {
	mu      sync.Mutex
	rng     *rand.Rand
	current net.Conn // the guest's end of the host's connection
	arrived chan struct{}
	left    [2][]byte // for each direction: delayed bytes, sent with the next, perhaps on another connection
}

func newLine(seed uint64) *line {
	return &line{rng: rand.New(rand.NewPCG(seed, 1)), arrived: make(chan struct{}, 1)}
}

func (l *line) dial(context.Context) (io.ReadWriteCloser, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rng == nil || l.rng.IntN(4) == 0 {
		return nil, errors.New("no listener")
	}
	host, guest := net.Pipe()
	if l.current != nil {
		l.current.Close()
	}
	l.current = guest
	after := time.Duration(l.rng.IntN(20000)) * time.Microsecond
	time.AfterFunc(after, func() { guest.Close() })
	select {
	case l.arrived <- struct{}{}:
	default:
	}
	return host, nil
}

func (l *line) conn() net.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current
}

// mangle returns what arrives of b, and whether the connection ends then.
func (l *line) mangle(way int, b []byte) ([]byte, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rng == nil {
		return b, false
	}
	out := append(bytes.Clone(l.left[way]), b...)
	l.left[way] = nil
	switch l.rng.IntN(12) {
	case 0:
		return out[:l.rng.IntN(len(out)+1)], true
	case 1:
		cut := l.rng.IntN(len(out) + 1)
		return append(bytes.Clone(out), out[cut:]...), false
	case 2:
		cut := l.rng.IntN(len(out) + 1)
		l.left[way] = bytes.Clone(out[cut:])
		return out[:cut], l.rng.IntN(2) == 0
	case 3:
		return append(out, "\x1epgl1000000ff\x1e"...), false
	}
	return out, false
}

func (l *line) Read(b []byte) (int, error) {
	for {
		c := l.conn()
		if c != nil {
			n, err := c.Read(b[:len(b)/4])
			if err == nil {
				got, end := l.mangle(0, b[:n])
				if end {
					c.Close()
				}
				return copy(b, got), nil
			}
		}
		select {
		case _, ok := <-l.arrived:
			if !ok {
				return 0, io.EOF
			}
		case <-time.After(time.Millisecond):
			if l.isDone() {
				return 0, io.EOF
			}
		}
	}
}

func (l *line) isDone() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rng == nil
}

func (l *line) Write(b []byte) (int, error) {
	got, end := l.mangle(1, b)
	if c := l.conn(); c != nil {
		c.Write(got) // lost without a reader, as with QEMU
		if end {
			c.Close()
		}
	}
	return len(b), nil
}

func quick() timing {
	return timing{unheard: 5 * time.Millisecond, heard: 10 * time.Millisecond, redial: time.Millisecond, slowest: 4 * time.Millisecond}
}

// Input and output arrive exactly once despite all faults, also with successive clients.
func TestNothingLostOrDoubled(t *testing.T) {
	for seed := range uint64(8) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		l, p := newLine(seed), newProgram()
		served := make(chan struct{})
		go func() { defer close(served); serve(ctx, l, p, 15*time.Millisecond) }()

		want := make([]byte, 40_000)
		for i := range want {
			want[i] = byte(rand.Uint32())
		}
		var clients sync.WaitGroup
		c := New(l.dial)
		c.timing = quick()
		clients.Go(func() {
			var next int64
			for err := error(nil); next < int64(len(want)) && err == nil; {
				part := want[next:min(next+3000, int64(len(want)))]
				next, err = c.Write(ctx, "p", next, part, next+int64(len(part)) == int64(len(want)))
				if err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
			}
		})
		clients.Go(func() {
			if exit, err := c.Wait(ctx, "p"); err != nil || exit.Code != 143 || exit.Signal != "SIGTERM" {
				t.Errorf("seed %d: %v %v", seed, exit, err)
			}
		})
		var got []byte
		for {
			data, eof, err := c.Read(ctx, "p", fleet.Stdout, int64(len(got)))
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if eof {
				break
			}
			for _, b := range data {
				got = append(got, b-1)
			}
		}
		clients.Wait()
		if !bytes.Equal(got, want) {
			t.Errorf("seed %d: %d bytes came of %d, or others", seed, len(got), len(want))
		}
		c.Close()
		cancel()
		if conn := l.conn(); conn != nil {
			conn.Close()
		}
		l.end()
		<-served
	}
}

func (l *line) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rng = nil
}

func pair(t *testing.T, p Server) *Client {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	c := New(func(context.Context) (io.ReadWriteCloser, error) {
		host, guest := net.Pipe()
		all.Go(func() { Serve(ctx, guest, p) })
		context.AfterFunc(ctx, func() { guest.Close() })
		return host, nil
	})
	t.Cleanup(func() { c.Close(); cancel(); all.Wait() })
	return c
}

func TestAnswers(t *testing.T) {
	p := newProgram()
	c := pair(t, p)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.Launch(ctx, fleet.Program{ID: "bad"}); err == nil || err.Error() != "no such program" {
		t.Errorf("the guest's sentence did not come: %v", err)
	}
	if err := c.Launch(ctx, fleet.Program{ID: "bug"}); err == nil {
		t.Error("a panic in the guest is not an error")
	}
	err := c.Launch(ctx, fleet.Program{ID: "unreachable"})
	if err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "did not become available") {
		t.Errorf("a time-out of the guest's own came as: %v", err)
	}
	if err := c.Launch(ctx, fleet.Program{ID: "long", Args: []string{string(make([]byte, maxPayload))}}); err == nil {
		t.Error("a call that can never arrive was made")
	}
	if err := c.Signal(ctx, "p1", fleet.Signal{ID: "s1", Number: 10, Ends: true, Grace: time.Second}); err != nil {
		t.Errorf("a signal arrived otherwise: %v", err)
	}
	traces, err := c.Trace(ctx, fleet.TraceQuery{To: time.Unix(9, 0)})
	if err != nil || len(traces) != 299 || traces[298].Rank != 299 || traces[0].At.Unix() != 9 {
		t.Errorf("%d traces, %v", len(traces), err)
	}
	if got, err := c.Cache(ctx, fleet.Spare{Drop: true, EmptyBytes: 3 << 20}); err != nil || got.FreeBytes != 9<<40 {
		t.Errorf("of its memory the guest says %+v, %v", got, err)
	}
	if got, err := c.Cache(ctx, fleet.Spare{}); err == nil || got != (fleet.Cache{}) {
		t.Errorf("an error came as %+v, %v", got, err)
	}
	if got, err := c.Topology(ctx); err != nil || got.Level != "x86-64-v3" {
		t.Errorf("of its processors the guest says %+v, %v", got, err)
	}
	if err := c.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	clock := time.Now()
	if err := c.Setup(ctx, fleet.Setup{Hostname: "guest0", Clock: clock}); err != nil {
		t.Error(err)
	}
	if s := p.setups[0]; s.Hostname != "guest0" || !s.Clock.After(clock) {
		t.Errorf("setup arrived as %+v", s)
	}
}

// A guest lives through upgrades of the hosts' agents, and may come from a host that is newer.
// What it says of its version decides, and an older guest agent is never refused.
func TestVersions(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for host, works := range map[int]bool{fleet.Protocol() - 2: false, fleet.Protocol() - 1: true, fleet.Protocol(): true, fleet.Protocol() + 1: true, fleet.Protocol() + 7: true} {
		c := pair(t, newProgram())
		c.speaks = host
		_, err := c.Topology(ctx)
		if (err == nil) != works {
			t.Errorf("an agent of version %d and a guest of version %d: %v", host, fleet.Protocol(), err)
		}
		if !works && (err == nil || !strings.HasSuffix(err.Error(), "upgrade the agent of its host")) {
			t.Errorf("it is told %v", err)
		}
	}
	c := pair(t, newProgram())
	_, err := c.do(ctx, "sing", constant(struct{}{}))
	if err == nil || !strings.Contains(err.Error(), `does not know the call "sing": it speaks version`) {
		t.Errorf("an unknown call: %v", err)
	}
	if err := c.Shutdown(ctx); err != nil {
		t.Errorf("and after it: %v", err)
	}
}

// A guest agent from before there were versions says none, and ignores the host's.
func TestGuestFromBefore(t *testing.T) {
	host, guest := net.Pipe()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		var d decoder
		buffer := make([]byte, 1<<10)
		for {
			n, err := guest.Read(buffer)
			d.feed(buffer[:n], func(payload []byte) {
				var r struct {
					Session uint64 `json:"s"`
					ID      uint64 `json:"id"`
				}
				if err := json.Unmarshal(payload, &r); err != nil {
					t.Error(err)
				}
				frame, err := encode(map[string]any{"s": r.Session, "id": r.ID, "body": map[string]any{"topology": fleet.Topology{Level: "old"}}})
				if err != nil {
					t.Error(err)
				}
				_, _ = guest.Write(frame)
			})
			if err != nil {
				return
			}
		}
	}()
	c := New(func(context.Context) (io.ReadWriteCloser, error) { return host, nil })
	defer c.Close()
	if got, err := c.Topology(ctx); err != nil || got.Level != "old" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestCallEndsWithItsContext(t *testing.T) {
	c := New(func(context.Context) (io.ReadWriteCloser, error) { return nil, errors.New("guest is elsewhere") })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := c.Wait(ctx, "p")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	c.Close()
	if err := c.Shutdown(t.Context()); err == nil {
		t.Error("a call on a closed link was answered")
	}
}
