// Package framing sends messages from one host to another while a container moves. A message has
// a kind and a content and travels over one TCP connection. In the first messages both sides
// check that they mean the same guest and the same migration.
//
// The package does not know the contents of messages. Any malformed input is an error and ends
// the connection. The tests run over real connections, and with malformed bytes.
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

// Most is the longest content, in bytes.
const Most = 1 << 20

const (
	headBytes   = 5 // kind, length
	bufferBytes = 256 << 10
	// silence is how long the other side may send and accept nothing before the
	// connection counts as dead. A disk never delays it, because both sides write to
	// memory.
	silence = 30 * time.Second
	// drainLimit is how long a peer that should end the connection may be silent.
	drainLimit = 5 * time.Second
	// slice is the interval in which the rate limit is applied. In between data is sent
	// at the line's own speed.
	slice = 20 * time.Millisecond
)

// Conn is one connection. One goroutine may send while another receives.
type Conn struct {
	raw  net.Conn
	in   *bufio.Reader
	out  *bufio.Writer
	pace Pace
	sent int64
	came []byte // buffer that messages are received into
}

// New makes a Conn from an open connection.
func New(raw net.Conn) *Conn {
	c := &Conn{raw: raw}
	c.in = bufio.NewReaderSize(raw, bufferBytes)
	c.out = bufio.NewWriterSize(raw, bufferBytes)
	return c
}

// Limit limits the sending rate, in bytes per second; 0 means no limit.
func (c *Conn) Limit(bytesPerSecond int64) { c.pace = NewPace(bytesPerSecond) }

// Sent returns how many bytes have been sent.
func (c *Conn) Sent() int64 { return c.sent }

// File returns a copy of the connection as a file, for a process to inherit. No data may
// be in transit in either direction. The caller must close both the file and the
// connection.
func (c *Conn) File() (*os.File, error) {
	tcp, is := c.raw.(*net.TCPConn)
	if !is {
		return nil, errors.New("the connection cannot be given to another process")
	}
	return tcp.File()
}

// Close closes the connection. Calls that wait on it return errors.
func (c *Conn) Close() error { return c.raw.Close() }

// Send sends a message made of parts. Some of it may stay buffered until Flush.
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

// Flush sends buffered data.
func (c *Conn) Flush() error {
	if err := c.raw.SetWriteDeadline(time.Now().Add(silence)); err != nil {
		return err
	}
	if err := c.out.Flush(); err != nil {
		return fmt.Errorf("send to the other host: %w", err)
	}
	return nil
}

// Receive waits for a message, without limit if patience is 0. The content is valid until
// the next call.
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

// Read reads one message into room, or into a larger buffer if room is too small.
// Allocating a buffer for each message would be most of the work of a target's host.
func Read(r io.Reader, room []byte) (kind byte, content []byte, err error) {
	var head [headBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, fmt.Errorf("receive from the other host: %w", err)
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > Most {
		return 0, nil, fmt.Errorf("the other host announces a message of %d bytes, which is too long: it is no agent", n)
	}
	content = slices.Grow(room[:0], int(n))[:n]
	if _, err := io.ReadFull(r, content); err != nil {
		return 0, nil, fmt.Errorf("receive from the other host: %w", err)
	}
	return head[0], content, nil
}

// Pace limits a sending rate by waiting.
type Pace struct{ limiter *rate.Limiter } // nil: no limit

// leastBurst is the smallest burst, in bytes. It keeps messages from being counted in
// tiny parts when the limit is low.
const leastBurst = 4096

// NewPace returns a Pace for a limit in bytes per second; 0 means no limit.
func NewPace(bytesPerSecond int64) Pace {
	if bytesPerSecond <= 0 {
		return Pace{}
	}
	burst := max(leastBurst, int(float64(bytesPerSecond)*slice.Seconds()/10)) // allows a late wait to catch up
	return Pace{rate.NewLimiter(rate.Limit(bytesPerSecond), burst)}
}

// Wait waits until so many more bytes may be sent.
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

// Place is where a target receives a container.
type Place struct {
	Address netip.AddrPort
	Word    string // a secret that only the two hosts know
}

// String returns the text that Receive returns and Copy is given.
func (p Place) String() string { return p.Address.String() + "/" + p.Word }

// wordBytes is the longest word of a Place, in bytes.
const wordBytes = 64

// ParsePlace parses the text of String.
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

// Over reports whether an error means that the connection ended in any way, rather than
// that a message was malformed.
func Over(err error) bool {
	var n *net.OpError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.As(err, &n)
}

// Drain reads until the other side ends the connection, or is silent for drainLimit. If
// this side closed the connection at once, its last messages could be lost.
func (c *Conn) Drain() {
	for {
		if _, _, err := c.Receive(drainLimit); err != nil {
			return
		}
	}
}
