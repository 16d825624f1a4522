// Package line makes connections of a terminal line: what a Xen guest and its host have between them is a
// console, which has neither a beginning nor an end.
//
// A mark begins each connection and ends the one before. Bytes are stuffed so that no content can be taken for a
// mark; so a reader that has lost bytes, as when the guest has moved, finds the next beginning. It must not know what is said on
// a connection.
package line

import (
	"bytes"
	"errors"
	"io"
	"sync"
)

// A mark is escape and one more byte. The escape byte itself is sent as escape and literal.
// Begin and answer are followed by a number, by which an answer to an earlier begin is known.
const (
	escape  = 0xDB
	literal = 0x01 // escape, as content
	begin   = 0x02 // a connection begins here, asked for by the host
	answer  = 0x03 // the guest's first bytes of it come
	end     = 0x04 // the connection is over
)

// ErrOver says that the connection has ended.
var ErrOver = errors.New("the connection over the console has ended")

// Stuff returns content as it is sent.
func Stuff(content []byte) []byte {
	return bytes.ReplaceAll(content, []byte{escape}, []byte{escape, literal})
}

// Event is what a Reader finds next.
type Event struct {
	Content []byte // nil: a mark
	Mark    byte
	Number  byte
}

// Reader tells content from marks.
type Reader struct {
	from    io.Reader
	buffer  [4096]byte
	rest    []byte
	escaped bool
	mark    byte // that a number belongs to; 0: none
}

// NewReader reads a line.
func NewReader(from io.Reader) *Reader { return &Reader{from: from} }

// Next returns what comes next. Content is valid until the next call.
func (r *Reader) Next() (Event, error) {
	for {
		for len(r.rest) > 0 {
			if e, found := r.takeEvent(); found {
				return e, nil
			}
		}
		n, err := r.from.Read(r.buffer[:])
		r.rest = r.buffer[:n]
		if n == 0 && err != nil {
			return Event{}, err
		}
	}
}

// takeEvent takes an event from what was read; none is found in a lone escape, and in a mark that is not known.
func (r *Reader) takeEvent() (Event, bool) {
	if first := r.rest[0]; r.mark != 0 && first != escape { // an escape in the place of a number: it was lost
		e := Event{Mark: r.mark, Number: first}
		r.rest, r.mark = r.rest[1:], 0
		return e, true
	}
	r.mark = 0
	if r.escaped {
		mark := r.rest[0]
		r.rest, r.escaped = r.rest[1:], mark == escape // what came between two of them was lost
		switch mark {
		case literal:
			return Event{Content: []byte{escape}}, true
		case end:
			return Event{Mark: end}, true
		case begin, answer:
			r.mark = mark
		}
		return Event{}, false
	}
	at := bytes.IndexByte(r.rest, escape)
	if at == 0 {
		r.rest, r.escaped = r.rest[1:], true
		return Event{}, false
	}
	if at < 0 {
		at = len(r.rest)
	}
	content := r.rest[:at]
	r.rest = r.rest[at:]
	return Event{Content: content}, true
}

// Guest is the guest's end of a line.
type Guest struct {
	reader *Reader
	to     io.Writer
	mu     sync.Mutex
	now    *Conn // the connection that content belongs to; nil: none
	begun  bool  // the mark of the next one was read
	number byte  // of that
}

// NewGuest is the end of a line that is open.
func NewGuest(tty io.ReadWriter) *Guest { return &Guest{reader: NewReader(tty), to: tty} }

// Accept waits for the host to begin a connection. The one before must have ended. It returns an error when the line
// cannot be read.
func (g *Guest) Accept() (*Conn, error) {
	for !g.begun {
		e, err := g.reader.Next()
		if err != nil {
			return nil, err
		}
		g.begun, g.number = e.Mark == begin, e.Number
	}
	g.begun = false
	c := &Conn{guest: g}
	g.mu.Lock()
	g.now = c
	g.mu.Unlock()
	return c, c.write([]byte{escape, answer, g.number})
}

// Conn is a guest's connection. One goroutine may read it, and any may write.
type Conn struct {
	guest *Guest
	rest  []byte
	over  error
}

// Read reads what the host says, until it begins another connection, or ends this one.
func (c *Conn) Read(b []byte) (int, error) {
	for len(c.rest) == 0 {
		if c.over != nil {
			return 0, c.over
		}
		e, err := c.guest.reader.Next()
		switch {
		case err != nil:
			c.over = err
		case e.Mark == begin, e.Mark == end:
			c.over, c.guest.begun, c.guest.number = io.EOF, e.Mark == begin, e.Number
		default:
			c.rest = e.Content
			continue
		}
		c.guest.mu.Lock()
		c.guest.now = nil
		c.guest.mu.Unlock()
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// Drain reads on until the connection is over, if its reader has given it up.
func (c *Conn) Drain() {
	for b := make([]byte, 512); ; {
		if _, err := c.Read(b); err != nil {
			return
		}
	}
}

// Write says something to the host.
func (c *Conn) Write(b []byte) (int, error) {
	if err := c.write(Stuff(b)); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (c *Conn) write(stuffed []byte) error {
	c.guest.mu.Lock()
	defer c.guest.mu.Unlock()
	if c.guest.now != c {
		return ErrOver
	}
	_, err := c.guest.to.Write(stuffed)
	return err
}

// Host is the host's end of a line.
type Host struct {
	to     io.Writer
	mu     sync.Mutex
	now    io.WriteCloser // whose connection it is; nil: nobody's
	is     bool           // the guest has answered
	number byte           // of the last begin
}

// NewHost is an end from which nothing is read yet: see Listen.
func NewHost(to io.Writer) *Host { return &Host{to: to} }

// BeginFor makes a connection for client, which gets what the guest says, and closes the one before. What comes from the guest before
// its answer is of an earlier one.
func (h *Host) BeginFor(client io.WriteCloser) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.now != nil {
		h.now.Close()
	}
	h.now, h.is = client, false
	if h.number++; h.number == escape {
		h.number++
	}
	_, err := h.to.Write([]byte{escape, begin, h.number})
	return err
}

// End ends client's connection, unless another has begun.
func (h *Host) End(client io.WriteCloser) {
	h.mu.Lock()
	defer h.mu.Unlock()
	client.Close()
	if h.now == client {
		h.now = nil
		_, _ = h.to.Write([]byte{escape, end}) // a guest that does not hear it hears the next begin
	}
}

// Say sends what client says.
func (h *Host) Say(client io.WriteCloser, content []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.now != client {
		return ErrOver
	}
	_, err := h.to.Write(Stuff(content))
	return err
}

// Listen gives clients what the guest says until the line ends.
func (h *Host) Listen(from io.Reader) error {
	for r := NewReader(from); ; {
		e, err := r.Next()
		if err != nil {
			return err
		}
		h.mu.Lock()
		client := h.now
		if e.Mark == answer && e.Number == h.number {
			h.is = true
		}
		if !h.is {
			client = nil
		}
		h.mu.Unlock()
		if client != nil && e.Content != nil {
			if _, err := client.Write(e.Content); err != nil {
				h.End(client)
			}
		}
	}
}
