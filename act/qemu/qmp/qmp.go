// Package qmp speaks QEMU's Machine Protocol: one JSON object a line over a UNIX socket.
// Commands are answered by id, with events in between.
//
// The package knows only the command that opens the protocol, and nothing about guests. QEMU
// serves one connection at a time: close the old one before you open another. The peer is not
// trusted: anything that violates the protocol ends the connection with an error. The tests
// use a real QEMU and, for what a real one never sends, raw bytes.
package qmp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Client is one connection to one QEMU. Its methods may be called from any goroutine.
type Client struct {
	conn net.Conn
	in   *bufio.Reader
	done chan struct{} // closed once err is set

	writing sync.Mutex // held while writing one line
	mu      sync.Mutex // guards the following fields
	nextID  uint64
	waiting map[uint64]chan<- message
	heard   map[*subscription]struct{}
	err     error // why the connection ended
}

// Event is an asynchronous message from QEMU.
type Event struct {
	Name string
	At   time.Time // QEMU's clock; zero if not given
	Data json.RawMessage
}

// Error is QEMU's refusal of a command; the connection stays open.
type Error struct {
	Command string
	Class   string
	Desc    string
}

// Error returns the refusal in QEMU's words.
func (e *Error) Error() string { return e.Command + ": " + e.Desc }

// Limits of times and sizes.
const (
	greetingLimit = 20 * time.Second // a starting QEMU greets within milliseconds, on a busy host within seconds; one with another client never does
	commandLimit  = 20 * time.Second // QEMU answers no command while it writes a suspended guest's last memory
	lineLimit     = 4 << 20          // the longest answers are some ten KiB
)

// ErrClosed ends the commands in progress when Close is called.
var ErrClosed = errors.New("the connection was closed")

type message struct {
	Greeting  json.RawMessage `json:"QMP"`
	ID        *uint64         `json:"id"`
	Return    json.RawMessage `json:"return"`
	Error     *refusal        `json:"error"`
	Event     string          `json:"event"`
	Data      json.RawMessage `json:"data"`
	Timestamp stamp           `json:"timestamp"`
}

type refusal struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

type stamp struct {
	Seconds      int64 `json:"seconds"`
	Microseconds int64 `json:"microseconds"`
}

type command struct {
	Execute   string `json:"execute,omitempty"`
	Urgent    string `json:"exec-oob,omitempty"` // for an out-of-band command, instead of Execute
	Arguments any    `json:"arguments,omitempty"`
	ID        uint64 `json:"id"`

	with *os.File // comes with the command
}

// greeting is QEMU's first message.
type greeting struct {
	Capabilities []string `json:"capabilities"`
}

// outOfBand is the capability to answer some commands while others wait, and while QEMU's
// main loop is blocked.
const outOfBand = "oob"

// Open connects to the UNIX socket at path and opens the protocol. After an error the
// connection is closed.
func Open(ctx context.Context, path string) (*Client, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return Over(ctx, conn)
}

// Over opens the protocol over a connection. After an error the connection is closed.
func Over(ctx context.Context, conn net.Conn) (*Client, error) {
	// QEMU may still answer a command of the client before, by its number.
	return converse(ctx, conn, uint64(rand.Uint32()))
}

// converse opens the protocol on a connection, which the client then owns. It numbers its
// commands from the one after last. After an error the connection is closed.
func converse(ctx context.Context, conn net.Conn, last uint64) (*Client, error) {
	c := &Client{
		nextID: last,
		conn:   conn, in: bufio.NewReaderSize(conn, 16<<10), done: make(chan struct{}),
		waiting: map[uint64]chan<- message{}, heard: map[*subscription]struct{}{},
	}
	ctx, cancel := context.WithTimeout(ctx, greetingLimit)
	defer cancel()
	// A read has no context; closing the connection ends it.
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	offers, err := c.greet()
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err == nil {
		go c.read()
		var enable any
		if slices.Contains(offers.Capabilities, outOfBand) {
			enable = map[string]any{"enable": []string{outOfBand}}
		}
		err = c.Do(ctx, "qmp_capabilities", enable, nil)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		c.Close()
		return nil, fmt.Errorf("open qmp: %w", err)
	}
	return c, nil
}

// greet awaits the greeting. An event, or the answer to a command of the client before, may
// come ahead of it: QEMU takes a connection a moment before it knows that the client is another.
func (c *Client) greet() (g greeting, err error) {
	var m message
	for m.Greeting == nil {
		if m, err = c.next(); err != nil {
			return g, err
		}
		if m.Greeting == nil && m.Event == "" && m.ID == nil {
			return g, errors.New("the peer did not greet as QEMU does")
		}
	}
	if err := json.Unmarshal(m.Greeting, &g); err != nil {
		return g, fmt.Errorf("the peer does not greet as QEMU does: %w", err)
	}
	return g, nil
}

// Do sends a command, waits for its answer and decodes it into out unless out is nil. An
// *Error is QEMU's refusal; after any other error it is unknown whether the command was
// carried out.
func (c *Client) Do(ctx context.Context, name string, args, out any) error {
	return c.do(ctx, name, command{Execute: name, Arguments: args}, out)
}

// Give gives QEMU a copy of a file, by a name; a file that it had by this name it closes. After an error QEMU may
// have it.
func (c *Client) Give(ctx context.Context, name string, file *os.File) error {
	const give = "getfd"
	return c.do(ctx, give, command{Execute: give, Arguments: map[string]any{"fdname": name}, with: file}, nil)
}

// Urge is Do for one of the few commands that QEMU carries out while its main loop is blocked.
// QEMU refuses it if it has no out-of-band commands.
func (c *Client) Urge(ctx context.Context, name string, args any) error {
	return c.do(ctx, name, command{Urgent: name, Arguments: args}, nil)
}

func (c *Client) do(ctx context.Context, name string, what command, out any) error {
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	answer := make(chan message, 1)
	id, err := c.expect(answer)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer c.forget(id)
	what.ID = id
	line, err := json.Marshal(what)
	if err != nil {
		return fmt.Errorf("%s: encode: %w", name, err)
	}
	if err := c.write(ctx, append(line, '\n'), what.with); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	select {
	case m := <-answer:
		return m.into(name, out)
	case <-c.done:
		select {
		case m := <-answer: // QEMU's last message
			return m.into(name, out)
		default:
			return fmt.Errorf("%s: %w", name, c.reason())
		}
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", name, ctx.Err())
	}
}

// into decodes the answer to the named command.
func (m message) into(name string, out any) error {
	if m.Error != nil {
		return &Error{Command: name, Class: m.Error.Class, Desc: m.Error.Desc}
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(m.Return, out); err != nil {
		return fmt.Errorf("%s: decode the answer: %w", name, err)
	}
	return nil
}

func (c *Client) expect(answer chan<- message) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	c.nextID++
	c.waiting[c.nextID] = answer
	return c.nextID, nil
}

func (c *Client) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
}

// write sends one complete line. A partial line would corrupt the following ones, so a
// failed write ends the connection. A caller whose time is over before it has begun to write ends nothing: others use the connection.
func (c *Client) write(ctx context.Context, line []byte, with *os.File) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	c.conn.SetWriteDeadline(time.Now().Add(commandLimit))
	err := send(c.conn, line, with)
	if err != nil {
		c.end(err)
	}
	return err
}

// send writes a line, with a file unless that is nil.
func send(conn net.Conn, line []byte, with *os.File) error {
	if with == nil {
		_, err := conn.Write(line)
		return err
	}
	socket, is := conn.(*net.UnixConn)
	if !is {
		return errors.New("files go only over UNIX sockets")
	}
	raw, err := with.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	// The file comes with the first byte; so few bytes go at once.
	err = raw.Control(func(fd uintptr) { _, _, sent = socket.WriteMsgUnix(line, unix.UnixRights(int(fd)), nil) })
	return errors.Join(err, sent)
}

// read distributes QEMU's messages until the connection ends.
func (c *Client) read() {
	for {
		m, err := c.next()
		if err == nil {
			err = c.deliver(m)
		}
		if err != nil {
			c.end(err)
			return
		}
	}
}

func (c *Client) next() (message, error) {
	var m message
	line, err := c.line()
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return m, fmt.Errorf("the peer does not speak qmp: %w", err)
	}
	return m, nil
}

func (c *Client) line() ([]byte, error) {
	var line []byte
	for {
		part, err := c.in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > lineLimit:
			return nil, errors.New("the peer sent an endless line")
		case err == nil && len(bytes.TrimSpace(line)) == 0:
			line = line[:0]
		case err == nil:
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

func (c *Client) deliver(m message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case m.Event != "":
		e := Event{Name: m.Event, Data: m.Data}
		if m.Timestamp.Seconds > 0 {
			e.At = time.Unix(m.Timestamp.Seconds, m.Timestamp.Microseconds*int64(time.Microsecond/time.Nanosecond))
		}
		for s := range c.heard {
			s.put(e)
		}
		return nil
	case m.Return == nil && m.Error == nil:
		return errors.New("the peer sent a message that is neither an answer nor an event")
	case m.ID == nil:
		if m.Error != nil {
			return fmt.Errorf("the peer did not understand: %s", m.Error.Desc)
		}
		return errors.New("the peer sent an answer without an id")
	}
	// Its sender may have given up already.
	if answer, ok := c.waiting[*m.ID]; ok {
		delete(c.waiting, *m.ID)
		answer <- m
	}
	return nil
}

// Done returns a channel that is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close ends the connection and all commands in progress. QEMU runs on.
func (c *Client) Close() error {
	c.end(ErrClosed)
	return nil
}

func (c *Client) end(err error) {
	if errors.Is(err, io.EOF) {
		err = errors.New("qemu closed the connection")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = err
	c.conn.Close()
	close(c.done)
	for s := range c.heard {
		close(s.events)
	}
	clear(c.heard)
}

func (c *Client) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

type subscription struct{ events chan Event }

// eventBacklog limits the events queued for a slow listener: more than a whole migration
// makes.
const eventBacklog = 256

// put drops the oldest event so that a slow listener does not block the connection.
func (s *subscription) put(e Event) {
	for {
		select {
		case s.events <- e:
			return
		default:
		}
		select {
		case <-s.events:
		default:
		}
	}
}

// Subscribe returns all events from now on. The channel is closed when the connection
// ends or stop is called; stop may be called twice. A listener that is 256 events behind
// loses the oldest.
func (c *Client) Subscribe() (events <-chan Event, stop func()) {
	s := &subscription{events: make(chan Event, eventBacklog)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		close(s.events)
		return s.events, func() {}
	}
	c.heard[s] = struct{}{}
	return s.events, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if _, ok := c.heard[s]; ok {
			delete(c.heard, s)
			close(s.events)
		}
	}
}
