package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

// A silently lost peer is noticed within twice pingEvery, and pongLimit: sooner than a host counts as silent (15 s). A machine that is short of memory may take some seconds to read; to
// connect again would take it longer.
const (
	pingEvery   = 3 * time.Second
	pongLimit   = 8 * time.Second
	writeLimit  = 6 * time.Second
	closeLimit  = time.Second
	reasonBytes = 120 // of a WebSocket close frame; 123 is the maximum
)

// Session is one WebSocket connection on which each side sends messages of one type. Its
// methods may be called concurrently, but Receive by one goroutine at a time.
type Session[Out, In any] struct {
	conn   *websocket.Conn
	peer   string
	out    *queue[[]byte]
	most   int64 // bytes of a message that the other side takes; 0: any
	in     *queue[In]
	heard  atomic.Bool            // a message came since the last look
	first  *In                    // received before the messages in in; set before the session is used
	said   atomic.Pointer[string] // why the other side is about to end the session; nil: it has not said
	ctx    context.Context        // ends with the session; its cause is the reason
	cancel context.CancelCauseFunc
	once   sync.Once
}

// The two ends of an agent's session.
type (
	// HostSession is the controller's end.
	HostSession = Session[Down, Up]
	// AgentSession is the agent's end.
	AgentSession = Session[Up, Down]
)

type sessionConfig[In any] struct {
	check        func(In, int64) error // of so many bytes; nil: every message is valid
	newer        bool                  // the other side speaks a newer version: messages without a known part are ignored
	messageBytes int64                 // of one message, and of all that wait to be received
	most         int64                 // as Session.most
	out, in      int
	peer         string // the other side's name in errors
}

var errClosed = errors.New("the session was closed")

func newSession[Out, In any](ctx context.Context, conn *websocket.Conn, c sessionConfig[In]) *Session[Out, In] {
	s := &Session[Out, In]{conn: conn, peer: c.peer, out: newQueue[[]byte](c.out, 0), most: c.most, in: newQueue[In](c.in, c.messageBytes)}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	conn.SetReadLimit(c.messageBytes)
	go s.reads(c)
	go s.writes()
	go s.pings()
	return s
}

// ErrTooLong: a message is longer than the other side takes. The session goes on without it.
var ErrTooLong = errors.New("a message is longer than the other side takes")

// Send queues a message and waits while the queue is full. If ctx has ended it does not
// wait. One that is too long is an ErrTooLong.
func (s *Session[Out, In]) Send(ctx context.Context, m Out) error {
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encoding a message: %w", err)
	}
	return s.sendText(ctx, b)
}

// sendText sends a message that is encoded already. Nobody may change it.
func (s *Session[Out, In]) sendText(ctx context.Context, b []byte) error {
	if s.most > 0 && int64(len(b)) > s.most {
		return fmt.Errorf("%w: %d bytes, and %s takes %d", ErrTooLong, len(b), s.peer, s.most)
	}
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	for !s.out.push(b, int64(len(b))) {
		select {
		case <-s.out.took:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		case <-ctx.Done():
			return fmt.Errorf("%s does not take messages: %w", s.peer, ctx.Err())
		}
	}
	return nil
}

// Receive gives the next message. It returns all earlier messages before the error that
// ended the session.
func (s *Session[Out, In]) Receive(ctx context.Context) (In, error) {
	if first := s.first; first != nil {
		s.first = nil
		return *first, nil
	}
	for {
		over := s.ctx.Err() != nil // before the look: what came earlier is given first
		if m, ok := s.in.pop(); ok {
			return m, nil
		}
		var none In
		if over {
			return none, context.Cause(s.ctx)
		}
		select {
		case <-s.in.put:
		case <-s.ctx.Done():
		case <-ctx.Done():
			return none, ctx.Err()
		}
	}
}

// Probe returns nil if the other side answers.
func (s *Session[Out, In]) Probe(ctx context.Context) error { return s.conn.Ping(ctx) }

// Done is closed when the session is over.
func (s *Session[Out, In]) Done() <-chan struct{} { return s.ctx.Done() }

// Close ends the session.
func (s *Session[Out, In]) Close() error {
	s.over(websocket.StatusNormalClosure, "", errClosed)
	return nil
}

// End ends the session and tells the other side why.
func (s *Session[Out, In]) End(reason string) {
	s.over(websocket.StatusPolicyViolation, reason, errors.New(reason))
}

// over closes the connection and waits at most closeLimit for the other side.
func (s *Session[Out, In]) over(code websocket.StatusCode, reason string, cause error) {
	s.once.Do(func() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			if len(reason) > reasonBytes {
				s.sayWhole(reason)
			}
			_ = s.conn.Close(code, clipped(reason)) // it is over in any case
		}()
		select {
		case <-done:
		case <-time.After(closeLimit):
		}
		s.cancel(cause) // ends a read under way, and with it the connection
	})
}

// parting is the last message of a session that ends with a reason that does not fit a close frame. No
// other message begins as it does.
type parting struct {
	Over string `json:"over"`
}

const (
	partingBegins = `{"over":`
	partingBytes  = 1 << 10 // of the reason
)

// sayWhole tells the other side why the session ends before it does. Nothing follows from it if that fails:
// the close frame says the beginning.
func (s *Session[Out, In]) sayWhole(reason string) {
	b, err := json.Marshal(parting{clippedTo(reason, partingBytes)})
	if err != nil || s.most > 0 && int64(len(b)) > s.most {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, closeLimit)
	defer cancel()
	_ = s.conn.Write(ctx, websocket.MessageText, b)
}

// clipped is what fits a close frame.
func clipped(reason string) string { return clippedTo(reason, reasonBytes) }

// clippedTo cuts at a rune, since a close reason must be valid UTF-8.
func clippedTo(text string, most int) string {
	if len(text) <= most {
		return text
	}
	end := 0
	for i := range text {
		if i > most-3 {
			break
		}
		end = i
	}
	return text[:end] + "…"
}

// reads ends the session when the other side does, or sends invalid messages.
func (s *Session[Out, In]) reads(c sessionConfig[In]) {
	for {
		_, b, err := s.conn.Read(s.ctx)
		if err != nil {
			s.cancel(s.why(err))
			_ = s.conn.CloseNow() // it is already broken
			return
		}
		s.heard.Store(true)
		if last := (parting{}); s.said.Load() == nil && bytes.HasPrefix(b, []byte(partingBegins)) && json.Unmarshal(b, &last) == nil {
			whole := clippedTo(last.Over, partingBytes)
			s.said.Store(&whole)
			continue
		}
		var m In
		if err := json.Unmarshal(b, &m); err != nil {
			s.End("a message is not understood: " + err.Error())
			return
		}
		if c.check != nil {
			err := c.check(m, int64(len(b)))
			if c.newer && errors.Is(err, errNoPart) {
				continue
			}
			if err != nil {
				s.End(err.Error())
				return
			}
		}
		for !s.in.push(m, int64(len(b))) {
			select {
			case <-s.in.took:
			case <-s.ctx.Done():
				return
			}
		}
	}
}

// why explains a read error for people.
func (s *Session[Out, In]) why(err error) error {
	if closed := (websocket.CloseError{}); errors.As(err, &closed) && closed.Reason != "" {
		reason := closed.Reason
		begins, cut := strings.CutSuffix(reason, "…")
		if said := s.said.Load(); cut && said != nil && strings.HasPrefix(*said, begins) {
			reason = *said
		}
		return fmt.Errorf("%s ended the session: %s", s.peer, reason)
	}
	if cause := context.Cause(s.ctx); cause != nil {
		return cause
	}
	return fmt.Errorf("%s is gone: %w", s.peer, err)
}

func (s *Session[Out, In]) writes() {
	for {
		b, ok := s.out.pop()
		if !ok {
			select {
			case <-s.ctx.Done():
				return
			case <-s.out.put:
				continue
			}
		}
		ctx, cancel := context.WithTimeout(s.ctx, writeLimit)
		err := s.conn.Write(ctx, websocket.MessageText, b)
		cancel()
		if err != nil {
			s.cancel(s.why(err))
			return
		}
	}
}

// pings asks the other side whether it is there, unless it says so itself.
func (s *Session[Out, In]) pings() {
	t := time.NewTicker(pingEvery)
	defer t.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-t.C:
		}
		if s.heard.Swap(false) {
			continue
		}
		ctx, cancel := context.WithTimeout(s.ctx, pongLimit)
		err := s.conn.Ping(ctx)
		cancel()
		if err != nil {
			if s.ctx.Err() == nil && s.heard.Load() {
				continue // it said something else meanwhile
			}
			if s.ctx.Err() == nil {
				s.cancel(fmt.Errorf("%s has not answered for %v", s.peer, pongLimit))
			}
			return
		}
	}
}

// checkUp and checkDown check that one field is set, and that what the controller keeps is not long.
func checkUp(m Up, bytes int64) error {
	if (m.Facts != nil || m.Hello != nil) && bytes > factsBytes {
		return fmt.Errorf("facts of %d bytes are more than a host can have to say: %d", bytes, int64(factsBytes))
	}
	return oneOf("a message of an agent", m.Hello != nil, m.Facts != nil, m.Report != nil, m.Reply != nil)
}

func checkDown(m Down, _ int64) error {
	return oneOf("a message of the controller", m.Wanted != nil, m.Task != nil, m.Query != nil, m.Lease != nil, m.Answers != nil)
}

var errNoPart = errors.New("has no part that is known here")

func oneOf(what string, set ...bool) error {
	n := 0
	for _, is := range set {
		if is {
			n++
		}
	}
	if n == 0 {
		return fmt.Errorf("%s %w", what, errNoPart)
	}
	if n != 1 {
		return fmt.Errorf("%s has %d parts instead of one", what, n)
	}
	return nil
}
