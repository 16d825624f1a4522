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

// Client is the host's side of the link to one guest. Its methods may be called
// concurrently; each returns when the guest has answered or its context ends, over as
// many connections as needed.
type Client struct {
	dial    func(context.Context) (io.ReadWriteCloser, error)
	session uint64
	timing  timing
	speaks  int

	mu      sync.Mutex
	last    uint64           // ID of the latest call
	calls   map[uint64]*call // unanswered
	out     chan []byte      // frames for the present connection; nil: none
	running bool             // connect is running
	trouble error            // why there is no connection, for people
	heard   bool             // the guest has sent something since the last check
	ctx     context.Context  // ends with Close
	stop    context.CancelFunc
}

// timing is the waits that tests shorten.
type timing struct {
	unheard time.Duration // before a call without acknowledgement is repeated
	heard   time.Duration // before an acknowledged call is repeated; above pollLimit, in case the answer is lost
	redial  time.Duration // minimum between connections
	slowest time.Duration // maximum between connections
}

// call is one call in progress.
type call struct {
	frame func() ([]byte, error) // made again for each try
	acked chan struct{}          // capacity 1
	reply chan reply             // capacity 1
}

// New returns a client whose connections come from dial. It dials when there are calls,
// and again whenever the connection ends while there are any. A guest accepts one
// connection at a time, so there must be one Client for each guest.
func New(dial func(context.Context) (io.ReadWriteCloser, error)) *Client {
	ctx, stop := context.WithCancel(context.Background())
	return &Client{
		dial:    dial,
		session: rand.Uint64(),
		speaks:  fleet.Protocol(),
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

// Setup makes the guest a member of its job. The clock in s counts from now: each try
// advances it by the time passed since.
func (c *Client) Setup(ctx context.Context, s fleet.Setup) error {
	began := time.Now()
	// Until the guest agent runs, tries collect in buffers, and it would set its clock by
	// the oldest. After a ping the buffers are empty.
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

// Launch starts a program, once for each ID.
func (c *Client) Launch(ctx context.Context, p fleet.Program) error {
	_, err := c.do(ctx, callLaunch, constant(p))
	return err
}

// Wait returns when the program ended.
func (c *Client) Wait(ctx context.Context, id string) (fleet.Exit, error) {
	r, err := c.do(ctx, callWait, constant(stream{Program: id}))
	r.Exit.Signal = r.Exit.Signal[:min(len(r.Exit.Signal), signalBytes)]
	return r.Exit, err
}

// Read returns output from offset on, waiting for some; the guest forgets output before
// offset. eof: there will be none at offset.
func (c *Client) Read(ctx context.Context, id, name string, offset int64) (data []byte, eof bool, err error) {
	r, err := c.do(ctx, callRead, constant(stream{Program: id, Name: name, Offset: offset}))
	return r.Data, r.EOF, err
}

// Write sends the program input that begins at offset, and returns where to continue; the
// guest ignores input before its own offset. eof closes the input. Write waits until the
// guest has taken all of data. After an error next is still where to continue.
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
			return next, nil // the guest has another offset; the caller has the data there
		}
		data = data[taken:]
	}
	return next, nil
}

// Signal sends a signal to a program's ranks in all guests of its job, once for each ID.
// After an error some may have received it; call again.
func (c *Client) Signal(ctx context.Context, program string, s fleet.Signal) error {
	_, err := c.do(ctx, callSignal, constant(signalCall{program, s}))
	return err
}

// Trace returns the MPI traces of the ranks in this guest, up to allTraceBytes.
func (c *Client) Trace(ctx context.Context, q fleet.TraceQuery) ([]fleet.Trace, error) {
	var out []fleet.Trace
	for first, bytes := 0, 0; bytes < allTraceBytes; {
		r, err := c.do(ctx, callTrace, constant(traceCall{q, first}))
		if err != nil {
			return nil, err
		}
		for _, raw := range r.Traces {
			t, size, err := readTrace(raw)
			if err != nil {
				return nil, err
			}
			if bytes += size; bytes > allTraceBytes {
				break
			}
			out = append(out, t)
		}
		if r.Next <= int64(first) || len(r.Traces) == 0 {
			break
		}
		first = int(r.Next)
	}
	return out, nil
}

// readTrace reads a trace, and says how long it is when it is written again. What a guest writes in two bytes
// may be hundreds then, and too much for a message to the controller.
func readTrace(raw []byte) (t fleet.Trace, size int, err error) {
	if err := json.Unmarshal(raw, &t); err != nil {
		return t, 0, fmt.Errorf("reading the traces from the guest agent: %w", err)
	}
	again, err := json.Marshal(t)
	if err != nil {
		return t, 0, fmt.Errorf("reading the traces from the guest agent: %w", err)
	}
	return t, max(len(raw), len(again)), nil
}

// Cache returns the guest's report of its memory, after it has spared what it is to. A guest agent of before empties nothing, and its
// report says so.
func (c *Client) Cache(ctx context.Context, s fleet.Spare) (fleet.Cache, error) {
	r, err := c.do(ctx, callCache, constant(s))
	if err != nil || r.Cache == nil {
		return fleet.Cache{}, err
	}
	return *r.Cache, nil
}

// Topology returns what the guest sees of its processors and memory.
func (c *Client) Topology(ctx context.Context) (fleet.Topology, error) {
	r, err := c.do(ctx, callTopology, constant(struct{}{}))
	if err == nil && r.Topology == nil {
		err = errors.New("the guest agent did not report the guest's topology")
	}
	if err != nil {
		return fleet.Topology{}, err
	}
	if again, err := json.Marshal(r.Topology); err != nil || len(again) > topologyBytes {
		return fleet.Topology{}, fmt.Errorf("the guest agent reports a topology of %d bytes, and no guest has one of more than %d: %w", len(again), topologyBytes, err)
	}
	return *r.Topology, nil
}

// OpenFiles returns the job's files that the guest has open for writing. A guest agent of an earlier
// version does not know them, which is an error.
func (c *Client) OpenFiles(ctx context.Context) (fleet.OpenFiles, error) {
	r, err := c.do(ctx, callFiles, constant(struct{}{}))
	if err != nil || r.Files == nil {
		return fleet.OpenFiles{}, err
	}
	return *r.Files, nil
}

// Shutdown ends all programs, flushes files and unmounts the share.
func (c *Client) Shutdown(ctx context.Context) error {
	_, err := c.do(ctx, callShutdown, constant(struct{}{}))
	return err
}

func constant(v any) func() any { return func() any { return v } }

// do makes a call, and repeats it while the guest answers Again.
func (c *Client) do(ctx context.Context, name string, body func() any) (result, error) {
	for {
		begun := time.Now()
		r, err := c.once(ctx, name, body)
		switch {
		case err != nil:
			return result{}, err
		case apart(r.Protocol, c.speaks) != "":
			return result{}, errors.New(apart(r.Protocol, c.speaks))
		case r.Again:
			c.rest(ctx, leastPoll-time.Since(begun))
			continue
		case r.Error != "":
			return result{}, errors.New(r.Error[:min(len(r.Error), errorBytes)])
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

// rest waits, unless the call or the link ends.
func (c *Client) rest(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-c.ctx.Done():
	}
}

// apart says why a guest agent and a host's agent do not work together; empty: they do.
func apart(guest, host int) string {
	if guest >= oldest && guest < host {
		return ""
	}
	return fleet.Apart(fleet.Speaker{Name: "the guest agent", Protocol: guest}, fleet.Speaker{Name: "the agent of its host", Protocol: host})
}

// once makes one call, repeating it until there is an answer.
func (c *Client) once(ctx context.Context, name string, body func() any) (reply, error) {
	id, k := c.enter(name, body)
	defer c.leave(id)
	if _, err := k.frame(); err != nil {
		return reply{}, err // permanently too long
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

// enter registers a call, so that it gets its answer and is sent on every new connection,
// and starts connect if necessary.
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
			return encode(request{Protocol: c.speaks, Session: c.session, ID: id, Call: name, Body: b})
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

// send sends a call if there is a connection. It does not wait: lost calls are repeated
// anyway.
func (c *Client) send(k *call) {
	frame, err := k.frame()
	if err != nil {
		return // once has checked it
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case c.out <- frame: // never ready without a connection
	default:
	}
}

// connect keeps a connection while there are calls. It ends when there are none after a
// connection has ended.
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

// wanted reports whether a connection is needed. If not, enter must start connect again.
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
	conn.Close() // ends a blocked Write
	writer.Wait()
	return err
}

// attach makes out the present connection and sends all calls in progress on it, because
// they may have been lost with the last one.
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

// listen distributes answers until the connection ends. A guest that sends what nobody waits for is read
// slowly: the host's processors pay for reading it, and not the guest's.
func (c *Client) listen(conn io.Reader) error {
	var d decoder
	buffer := make([]byte, 16<<10)
	for unasked := 0; ; {
		n, err := conn.Read(buffer)
		unasked += n
		d.feed(buffer[:n], func(payload []byte) {
			if c.answered(payload) {
				unasked = 0
			}
		})
		if err != nil {
			return fmt.Errorf("reading from the guest link: %w", err)
		}
		if unasked > unaskedBytes {
			c.rest(c.ctx, floodPause)
		}
	}
}

// answered reports whether somebody waited for what has come.
func (c *Client) answered(payload []byte) bool {
	var r reply
	if json.Unmarshal(payload, &r) != nil || r.Session != c.session {
		return false // an answer to an earlier client, still in a buffer
	}
	c.mu.Lock()
	c.heard = true
	k := c.calls[r.ID]
	c.mu.Unlock()
	if k == nil {
		return false // answered already
	}
	if r.Ack {
		select {
		case k.acked <- struct{}{}:
		default:
		}
		return false
	}
	select {
	case k.reply <- r:
		return true
	default:
		return false
	}
}
