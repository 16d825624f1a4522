package agent

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// A line is a TCP connection in memory, on synctest's clock. What is written arrives whole, in order and
// later, until the line is cut. A record of TLS is one write, and so is a message of a session: a cut is
// between two of them. When, and how, follows from the seed and from what the line is, and not from the order
// in which goroutines happen to run.

// cut is the end of a line.
type cut string

const (
	noCut   cut = ""
	broken  cut = "broken"  // both ends hear of it
	silent  cut = "silent"  // neither does, and what is written goes nowhere
	halfway cut = "halfway" // the one who dialled hears of it; what it has sent comes long after
)

// weather says what becomes of lines.
type weather struct {
	seed  uint64
	until time.Time // nothing goes wrong from then on
	saw   func(format string, args ...any)
}

// chance is a source of random numbers for one thing. The same thing has the same numbers.
func (w *weather) chance(what ...any) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, what...)
	return rand.New(rand.NewPCG(w.seed, h.Sum64()))
}

// half is one direction of a line.
type half struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced when something below changes
	queue   []segment
	over    error     // for who reads, when queue is empty
	last    time.Time // when the last segment arrives
}

type segment struct {
	at    time.Time
	bytes []byte
}

func (h *half) change(do func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	do()
	close(h.changed)
	h.changed = make(chan struct{})
}

// end is in order after what was sent.
func (h *half) end(err error) {
	h.change(func() {
		if h.over == nil {
			h.over = err
		}
	})
}

// line is one end of a connection.
type line struct {
	in, out    *half
	here, peer net.Addr
	trouble    *trouble

	mu    sync.Mutex
	until time.Time     // deadline of reads
	moved chan struct{} // closed and replaced when until changes
	once  sync.Once
}

// trouble is what a line meets: the same object for both ends.
type trouble struct {
	*weather
	name string   // host, purpose and time of the call
	all  [2]*half // that of the one who dialled, that of the other
	as   cut
	side int       // which of all is written to
	from time.Time // when it is cut: instead of the first write then

	mu   sync.Mutex
	over bool // it was cut
}

// newLine gives both ends of a new line.
func (w *weather) newLine(name string, near, far net.Addr) (*line, *line) {
	up, down := &half{changed: make(chan struct{})}, &half{changed: make(chan struct{})}
	t := &trouble{weather: w, name: name, all: [2]*half{up, down}}
	if r := w.chance(name, "cut"); time.Now().Before(w.until) && r.IntN(4) > 0 {
		after := 20 * time.Second
		if r.IntN(3) == 0 { // before much was said
			after = 100 * time.Millisecond
		}
		t.side, t.from, t.as = r.IntN(2), time.Now().Add(time.Duration(r.Int64N(int64(after)))), []cut{broken, silent, halfway}[r.IntN(3)]
	}
	return &line{in: down, out: up, here: near, peer: far, trouble: t, moved: make(chan struct{})},
		&line{in: up, out: down, here: far, peer: near, trouble: t, moved: make(chan struct{})}
}

// fate says how much later a write arrives, and whether it does.
func (t *trouble) fate(out *half) (late time.Duration, arrives bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	side := 0
	if out == t.all[1] {
		side = 1
	}
	r := t.chance(t.name, side, time.Now().UnixNano()) // and not how many were before: two at a time have no order
	late = time.Millisecond + time.Duration(r.IntN(int(20*time.Millisecond)))
	if time.Now().Before(t.until) && r.IntN(8) == 0 {
		late += time.Duration(r.IntN(int(2 * time.Second)))
	}
	if t.as != noCut && !t.over && side == t.side && !time.Now().Before(t.from) {
		t.happens()
	}
	if !t.over {
		return late, true
	}
	return late + 3*time.Second, t.as == halfway && side == 0
}

var errReset = &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}

// happens cuts the line.
func (t *trouble) happens() {
	t.over = true
	t.saw("%s: %s", t.name, t.as)
	switch t.as {
	case broken:
		t.all[0].end(errReset)
		t.all[1].end(errReset)
	case halfway:
		t.all[1].end(errReset)
	}
}

// carries reports whether what one end does is still of any concern to the other.
func (t *trouble) carries(out *half) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.over || t.as == halfway && out == t.all[0]
}

// Read waits for what arrives.
func (l *line) Read(b []byte) (int, error) {
	for {
		l.mu.Lock()
		until, moved := l.until, l.moved
		l.mu.Unlock()
		h := l.in
		h.mu.Lock()
		wake, changed := until, h.changed
		switch now := time.Now(); {
		case !until.IsZero() && !now.Before(until):
			h.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		case len(h.queue) > 0 && !h.queue[0].at.After(now):
			n := copy(b, h.queue[0].bytes)
			if h.queue[0].bytes = h.queue[0].bytes[n:]; len(h.queue[0].bytes) == 0 {
				h.queue = h.queue[1:]
			}
			h.mu.Unlock()
			return n, nil
		case len(h.queue) == 0 && h.over != nil:
			err := h.over
			h.mu.Unlock()
			return 0, err
		case len(h.queue) > 0 && (wake.IsZero() || h.queue[0].at.Before(wake)):
			wake = h.queue[0].at
		}
		h.mu.Unlock()
		await(wake, changed, moved)
	}
}

// await waits for a time, if there is one, or for either channel.
func await(at time.Time, one, other <-chan struct{}) {
	var due <-chan time.Time
	if !at.IsZero() {
		timer := time.NewTimer(time.Until(at))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-due:
	case <-one:
	case <-other:
	}
}

// Write sends b, whole. It never waits.
func (l *line) Write(b []byte) (int, error) {
	late, arrives := l.trouble.fate(l.out)
	var failed error
	l.out.change(func() {
		if l.out.over != nil {
			failed = &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", syscall.EPIPE)}
			return
		}
		at := time.Now().Add(late)
		if at.Before(l.out.last) {
			at = l.out.last
		}
		if arrives {
			l.out.last = at
			l.out.queue = append(l.out.queue, segment{at, append([]byte(nil), b...)})
		}
	})
	if failed != nil {
		return 0, failed
	}
	return len(b), nil
}

// Close ends both directions. The other end reads what was sent before.
func (l *line) Close() error {
	l.once.Do(func() {
		if l.trouble.carries(l.out) {
			l.out.end(io.EOF)
		}
		l.in.change(func() { l.in.over, l.in.queue = net.ErrClosed, nil })
	})
	return nil
}

func (l *line) LocalAddr() net.Addr  { return l.here }
func (l *line) RemoteAddr() net.Addr { return l.peer }

func (l *line) SetDeadline(t time.Time) error { return l.SetReadDeadline(t) }

func (l *line) SetReadDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = t
	close(l.moved)
	l.moved = make(chan struct{})
	return nil
}

func (l *line) SetWriteDeadline(time.Time) error { return nil } // Write never waits

// quay is where lines come in.
type quay struct {
	addr net.Addr
	in   chan net.Conn
	over chan struct{}
	once sync.Once
}

func newQuay(addr net.Addr) *quay {
	return &quay{addr: addr, in: make(chan net.Conn), over: make(chan struct{})}
}

func (q *quay) Accept() (net.Conn, error) {
	select {
	case c := <-q.in:
		return c, nil
	case <-q.over:
		return nil, net.ErrClosed
	}
}

func (q *quay) Close() error   { q.once.Do(func() { close(q.over) }); return nil }
func (q *quay) Addr() net.Addr { return q.addr }

var errNobody = &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}

// call dials a quay.
func (w *weather) call(ctx context.Context, q *quay, name string, from net.Addr) (net.Conn, error) {
	near, far := w.newLine(name, from, q.addr)
	select {
	case q.in <- far:
		return near, nil
	case <-q.over:
		return nil, errNobody
	case <-ctx.Done():
		return nil, errors.Join(errNobody, ctx.Err())
	}
}
