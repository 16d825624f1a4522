package guestlink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"pagurus/fleet"
)

// Client is the host's side of the link to one guest. Its methods may be
// called side by side; each returns when the guest has answered or its context
// ends, over as many connections as that takes.
type Client struct {
	dial    func(context.Context) (io.ReadWriteCloser, error)
	session uint64
	timing  timing

	mu      sync.Mutex
	last    uint64           // ID of the youngest call
	calls   map[uint64]*call // not yet answered
	out     chan []byte      // frames for the connection that stands; nil: none does
	running bool             // connect runs
	trouble error            // why there is no connection, for people
	heard   bool             // the guest said something since this was last looked at
	ctx     context.Context  // ends with Close
	stop    context.CancelFunc
}

// timing holds the waits that tests shorten.
type timing struct {
	unheard time.Duration // repeat a call the guest has not said it has
	heard   time.Duration // repeat one it has; over pollLimit, for the answer may be lost
	redial  time.Duration // least wait between two connections
	slowest time.Duration // most wait between two connections
}

// call is one call in progress.
type call struct {
	frame func() ([]byte, error) // made again for each try
	acked chan struct{}          // of capacity 1
	reply chan reply             // of capacity 1
}

// New gives a client whose connections come from dial. It dials when there
// is something to ask, and again, for as long as there is, whenever the
// connection ends. A guest takes one connection at a time, so there must be
// one Client to a guest.
func New(dial func(context.Context) (io.ReadWriteCloser, error)) *Client {
	ctx, stop := context.WithCancel(context.Background())
	return &Client{
		dial:    dial,
		session: rand.Uint64(),
		timing: timing{
			unheard: time.Second, heard: pollLimit + 5*time.Second,
			redial: 20 * time.Millisecond, slowest: time.Second,
		},
		calls: map[uint64]*call{},
		ctx:   ctx,
		stop:  stop,
	}
}

// Close ends the connection and all calls.
func (c *Client) Close() error {
	c.stop()
	return nil
}

// Setup makes the guest a member of its job. The time in s counts from now:
// it is put forward in each try by what has passed since.
func (c *Client) Setup(ctx context.Context, s fleet.Setup) error {
	began := time.Now()
	// Until the guest agent runs, tries pile up in buffers on the way, and it
	// would set its clock by the oldest. After a ping the way is clear.
	if _, err := c.do(ctx, callPing, constant(struct{}{})); err != nil {
		return err
	}
	_, err := c.do(ctx, callSetup, func() any {
		now := s
		if !s.Clock.IsZero() {
			now.Clock = s.Clock.Add(time.Since(began))
		}
		return now
	})
	return err
}

// Launch starts a program, once for its ID.
func (c *Client) Launch(ctx context.Context, p fleet.Program) error {
	_, err := c.do(ctx, callLaunch, constant(p))
	return err
}

// Wait returns when the program ended.
func (c *Client) Wait(ctx context.Context, id string) (fleet.Exit, error) {
	r, err := c.do(ctx, callWait, constant(stream{Program: id}))
	return r.Exit, err
}

// Read gives output from offset on, waiting for some; the guest forgets what
// is before offset. eof: there is nothing at offset and never will be.
func (c *Client) Read(ctx context.Context, id, name string, offset int64) (data []byte, eof bool, err error) {
	r, err := c.do(ctx, callRead, constant(stream{Program: id, Name: name, Offset: offset}))
	return r.Data, r.EOF, err
}

// Write gives the program input that begins at offset and says where to go
// on; input before the guest's own offset is passed over. eof closes it. It
// waits until the guest has taken all of data. After an error next is still
// where to go on.
func (c *Client) Write(ctx context.Context, id string, offset int64, data []byte, eof bool) (next int64, err error) {
	next = offset
	for first := true; first || len(data) > 0; first = false {
		part := data[:min(len(data), maxChunk)]
		last := len(part) == len(data)
		r, err := c.do(ctx, callWrite, constant(stream{
			Program: id, Offset: next, Data: part, EOF: eof && last,
		}))
		if err != nil {
			return next, err
		}
		taken := r.Next - next
		next = r.Next
		if taken <= 0 || taken > int64(len(data)) {
			return next, nil // the guest is elsewhere in the stream; the caller knows what is there
		}
		data = data[taken:]
	}
	return next, nil
}

// Signal passes a signal on to the ranks of a program in all guests of its job,
// once for its ID. After an error some may have it; call again.
func (c *Client) Signal(ctx context.Context, program string, s fleet.Signal) error {
	_, err := c.do(ctx, callSignal, constant(signalCall{program, s}))
	return err
}

// Trace gives what the ranks in this guest have done with MPI. Of more than
// allTraceBytes the rest is left out.
func (c *Client) Trace(ctx context.Context, q fleet.TraceQuery) ([]fleet.Trace, error) {
	var out []fleet.Trace
	for first, bytes := 0, 0; bytes < allTraceBytes; {
		r, err := c.do(ctx, callTrace, constant(traceCall{q, first}))
		if err != nil {
			return nil, err
		}
		for _, raw := range r.Traces {
			var t fleet.Trace
			if err := json.Unmarshal(raw, &t); err != nil {
				return nil, fmt.Errorf("reading the traces from the guest agent: %w", err)
			}
			bytes += len(raw)
			out = append(out, t)
		}
		if r.Next <= int64(first) || len(r.Traces) == 0 {
			break
		}
		first = int(r.Next)
	}
	return out, nil
}

// Cache gives what the guest could do without, after it has dropped its page
// cache if told to.
func (c *Client) Cache(ctx context.Context, drop bool) (fleet.Cache, error) {
	r, err := c.do(ctx, callCache, constant(cacheCall{drop}))
	if err != nil || r.Cache == nil {
		return fleet.Cache{}, err
	}
	return *r.Cache, nil
}

// Topology gives what the guest sees of its processors and its memory.
func (c *Client) Topology(ctx context.Context) (fleet.Topology, error) {
	r, err := c.do(ctx, callTopology, constant(struct{}{}))
	if err == nil && r.Topology == nil {
		err = errors.New("the guest agent did not report the guest's topology")
	}
	if err != nil {
		return fleet.Topology{}, err
	}
	return *r.Topology, nil
}

// Shutdown ends all programs, flushes files and unmounts the share.
func (c *Client) Shutdown(ctx context.Context) error {
	_, err := c.do(ctx, callShutdown, constant(struct{}{}))
	return err
}

func constant(v any) func() any { return func() any { return v } }

// do makes a call, and makes it anew for as long as the guest says Again.
func (c *Client) do(ctx context.Context, name string, body func() any) (result, error) {
	for {
		r, err := c.once(ctx, name, body)
		switch {
		case err != nil:
			return result{}, err
		case r.Again:
			continue
		case r.Error != "":
			return result{}, errors.New(r.Error)
		}
		var res result
		if len(r.Body) > 0 {
			if err := json.Unmarshal(r.Body, &res); err != nil {
				return result{}, fmt.Errorf("reading the guest agent's answer to %s: %w", name, err)
			}
		}
		return res, nil
	}
}

// once makes one call, repeating it until there is an answer.
func (c *Client) once(ctx context.Context, name string, body func() any) (reply, error) {
	id, k := c.enter(name, body)
	defer c.leave(id)
	if _, err := k.frame(); err != nil {
		return reply{}, err // too long, and always will be
	}
	c.send(k)
	timer := time.NewTimer(c.timing.unheard)
	defer timer.Stop()
	for {
		select {
		case r := <-k.reply:
			return r, nil
		case <-k.acked:
			timer.Reset(c.timing.heard)
		case <-timer.C:
			c.send(k)
			timer.Reset(c.timing.unheard)
		case <-ctx.Done():
			return reply{}, c.unanswered(name, context.Cause(ctx))
		case <-c.ctx.Done():
			return reply{}, c.unanswered(name, errors.New("the link was closed"))
		}
	}
}

func (c *Client) unanswered(name string, cause error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.trouble != nil {
		return fmt.Errorf("guest agent did not answer %s (%w): %w", name, c.trouble, cause)
	}
	return fmt.Errorf("guest agent did not answer %s: %w", name, cause)
}

// enter notes a call, so that its answer finds it and every new connection
// begins with it, and sees to it that there is a connection.
func (c *Client) enter(name string, body func() any) (uint64, *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	id := c.last
	k := &call{
		frame: func() ([]byte, error) {
			b, err := json.Marshal(body())
			if err != nil {
				return nil, fmt.Errorf("encoding the call %s: %w", name, err)
			}
			return encode(request{Session: c.session, ID: id, Call: name, Body: b})
		},
		acked: make(chan struct{}, 1),
		reply: make(chan reply, 1),
	}
	c.calls[id] = k
	if !c.running && c.ctx.Err() == nil {
		c.running = true
		go c.connect()
	}
	return id, k
}

func (c *Client) leave(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.calls, id)
}

// send puts a try of the call on its way if there is one. Nobody waits: what
// is lost here is repeated like what is lost anywhere else.
func (c *Client) send(k *call) {
	frame, err := k.frame()
	if err != nil {
		return // once has checked it
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case c.out <- frame: // never ready while there is no connection
	default:
	}
}

// connect keeps a connection for as long as there are calls, and ends when
// there are none after the connection did.
func (c *Client) connect() {
	pause := c.timing.redial
	for c.wanted() {
		conn, err := c.dial(c.ctx)
		if err == nil {
			err = c.serve(conn)
		}
		c.mu.Lock()
		c.trouble = err
		if c.heard {
			pause = c.timing.redial
		}
		c.heard = false
		c.mu.Unlock()
		select {
		case <-time.After(pause):
		case <-c.ctx.Done():
		}
		pause = min(2*pause, c.timing.slowest)
	}
}

// wanted reports whether there is anything to connect for. If not, connect
// has ended as far as enter is concerned.
func (c *Client) wanted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = len(c.calls) > 0 && c.ctx.Err() == nil
	return c.running
}

// serve uses a connection until it ends.
func (c *Client) serve(conn io.ReadWriteCloser) error {
	ctx, cancel := context.WithCancel(c.ctx)
	unhook := context.AfterFunc(ctx, func() { conn.Close() })
	defer unhook()
	defer conn.Close()
	out := make(chan []byte, 64)
	var writer sync.WaitGroup
	writer.Go(func() {
		defer cancel()
		for {
			select {
			case frame := <-out:
				if _, err := conn.Write(frame); err != nil {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	})
	c.attach(out)
	err := c.listen(conn)
	c.mu.Lock()
	c.out = nil
	c.mu.Unlock()
	cancel()
	conn.Close() // ends a Write that hangs
	writer.Wait()
	return err
}

// attach makes out the way to the guest and puts all calls in progress on it:
// they may have been lost with the connection before.
func (c *Client) attach(out chan []byte) {
	c.mu.Lock()
	c.out = out
	c.trouble = nil
	waiting := make([]*call, 0, len(c.calls))
	for _, k := range c.calls {
		waiting = append(waiting, k)
	}
	c.mu.Unlock()
	for _, k := range waiting {
		c.send(k)
	}
}

// listen hands out answers until the connection ends.
func (c *Client) listen(conn io.Reader) error {
	var d decoder
	buffer := make([]byte, 16<<10)
	for {
		n, err := conn.Read(buffer)
		d.feed(buffer[:n], c.answered)
		if err != nil {
			return fmt.Errorf("reading from the guest link: %w", err)
		}
	}
}

func (c *Client) answered(payload []byte) {
	var r reply
	if json.Unmarshal(payload, &r) != nil || r.Session != c.session {
		return // an answer to the client before us, still in a buffer
	}
	c.mu.Lock()
	c.heard = true
	k := c.calls[r.ID]
	c.mu.Unlock()
	if k == nil {
		return // answered already
	}
	if r.Ack {
		select {
		case k.acked <- struct{}{}:
		default:
		}
		return
	}
	select {
	case k.reply <- r:
	default:
	}
}
