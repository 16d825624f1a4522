// Package framing is how a container goes from one host to another: messages of a
// kind and a content over one TCP connection, and the first of them, by which
// the two sides find out that they mean the same guest and the same migration.
//
// It does not know what is in a message. Whatever comes that it does not
// understand is an error and ends the connection. Its tests run over real
// connections, and against bytes that nobody meant.
package framing

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

// Version is that of the messages: two sides of different versions refuse each
// other.
const Version = 4

// Most is the longest content there is.
const Most = 1 << 20

const (
	headBytes   = 5 // kind, length
	bufferBytes = 256 << 10
	// silence is how long the other side may say and take nothing before the
	// connection is taken for dead: both sides' disks are memory.
	silence = 30 * time.Second
	// drainLimit is how long somebody may be silent who is to end a connection.
	drainLimit = 5 * time.Second
	// slice is how often a ceiling is looked at: what is sent in between goes
	// at the line's own speed.
	slice = 20 * time.Millisecond
)

// Conn is one connection. Sending and receiving may go side by side, each by
// one at a time.
type Conn struct {
	raw  net.Conn
	in   *bufio.Reader
	out  *bufio.Writer
	pace Pace
	sent int64
	came []byte // the room that messages come into
}

// New makes a connection of an open one.
func New(raw net.Conn) *Conn {
	c := &Conn{raw: raw}
	c.in = bufio.NewReaderSize(raw, bufferBytes)
	c.out = bufio.NewWriterSize(raw, bufferBytes)
	return c
}

// Limit sets a ceiling on what is sent, in bytes a second; 0 is none.
func (c *Conn) Limit(bytesPerSecond int64) { c.pace = NewPace(bytesPerSecond) }

// Sent is how many bytes have been sent.
func (c *Conn) Sent() int64 { return c.sent }

// File gives the connection as a file of its own, for a process to inherit; nothing may
// be on its way in either direction. It is to be closed beside the connection.
func (c *Conn) File() (*os.File, error) {
	tcp, is := c.raw.(*net.TCPConn)
	if !is {
		return nil, errors.New("the connection cannot be given to another process")
	}
	return tcp.File()
}

// Close ends the connection; whoever waits on it gets an error.
func (c *Conn) Close() error { return c.raw.Close() }

// Send sends a message made of parts, perhaps later: Flush sends all.
func (c *Conn) Send(kind byte, parts ...[]byte) error {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	if size > Most {
		return fmt.Errorf("a message of %d bytes is too long", size)
	}
	var head [headBytes]byte
	head[0] = kind
	binary.BigEndian.PutUint32(head[1:], uint32(size))
	c.pace.Wait(size + headBytes)
	if err := c.raw.SetWriteDeadline(time.Now().Add(silence)); err != nil {
		return err
	}
	if _, err := c.out.Write(head[:]); err != nil {
		return fmt.Errorf("send to the other host: %w", err)
	}
	for _, p := range parts {
		if _, err := c.out.Write(p); err != nil {
			return fmt.Errorf("send to the other host: %w", err)
		}
	}
	c.sent += int64(size + headBytes)
	return nil
}

// Flush sends what is not sent yet.
func (c *Conn) Flush() error {
	if err := c.raw.SetWriteDeadline(time.Now().Add(silence)); err != nil {
		return err
	}
	if err := c.out.Flush(); err != nil {
		return fmt.Errorf("send to the other host: %w", err)
	}
	return nil
}

// Receive waits for a message, for ever if patience is 0. The content is only
// valid until the next.
func (c *Conn) Receive(patience time.Duration) (kind byte, content []byte, err error) {
	var until time.Time
	if patience > 0 {
		until = time.Now().Add(patience)
	}
	if err := c.raw.SetReadDeadline(until); err != nil {
		return 0, nil, err
	}
	if kind, content, err = Read(c.in, c.came); err == nil {
		c.came = content
	}
	return kind, content, err
}

// Read reads one message into room, or more if that is too small: room for each
// anew would be most of what a host that takes a guest in does.
func Read(r io.Reader, room []byte) (kind byte, content []byte, err error) {
	var head [headBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, fmt.Errorf("receive from the other host: %w", err)
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > Most {
		return 0, nil, fmt.Errorf("the other host announces a message of %d bytes, which is too long: it is no agent of this version", n)
	}
	content = slices.Grow(room[:0], int(n))[:n]
	if _, err := io.ReadFull(r, content); err != nil {
		return 0, nil, fmt.Errorf("receive from the other host: %w", err)
	}
	return head[0], content, nil
}

// Pace keeps a ceiling by waiting.
type Pace struct{ limiter *rate.Limiter } // nil: there is no ceiling

// leastBurst keeps messages from being counted in crumbs where the ceiling is low.
const leastBurst = 4096

// NewPace makes one of a ceiling in bytes a second; 0 is none.
func NewPace(bytesPerSecond int64) Pace {
	if bytesPerSecond <= 0 {
		return Pace{}
	}
	burst := max(leastBurst, int(float64(bytesPerSecond)*slice.Seconds()/10)) // what a wait that took too long may make up for
	return Pace{rate.NewLimiter(rate.Limit(bytesPerSecond), burst)}
}

// Wait waits until so many bytes more may be sent.
func (p Pace) Wait(bytes int) {
	if p.limiter == nil {
		return
	}
	ahead, now := time.Duration(0), time.Now()
	for burst := p.limiter.Burst(); bytes > 0; bytes -= burst { // no reservation may exceed it
		ahead = p.limiter.ReserveN(now, min(bytes, burst)).DelayFrom(now)
	}
	if ahead > slice {
		time.Sleep(ahead)
	}
}

// Place is where a target takes a container in.
type Place struct {
	Address netip.AddrPort
	Word    string // known to nobody but the two hosts
}

// String is what Receive says and Copy is given.
func (p Place) String() string { return p.Address.String() + "/" + p.Word }

// wordBytes bounds what stands for a Place's word.
const wordBytes = 64

// ParsePlace understands it.
func ParsePlace(text string) (Place, error) {
	address, word, ok := strings.Cut(text, "/")
	at, err := netip.ParseAddrPort(address)
	if err != nil || !ok || word == "" || len(word) > wordBytes || strings.ContainsAny(word, " \n/") || at.Port() == 0 {
		return Place{}, fmt.Errorf("%q is not where a container is taken in", text)
	}
	return Place{at, word}, nil
}

// dialLimit is how long a host of the same network may take to answer.
const dialLimit = 5 * time.Second

// Dial connects to a target.
func Dial(ctx context.Context, p Place) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", p.Address.String())
	if err != nil {
		return nil, fmt.Errorf("reach the target: %w", err)
	}
	return New(raw), nil
}

// Over reports whether an error says that the connection ended, in whatever
// way, rather than that a message was wrong.
func Over(err error) bool {
	var n *net.OpError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.As(err, &n)
}

// Drain takes what comes until the other side ends the connection, or until it
// says nothing for a while: ended before, the connection would take along what was
// said last.
func (c *Conn) Drain() {
	for {
		if _, _, err := c.Receive(drainLimit); err != nil {
			return
		}
	}
}
