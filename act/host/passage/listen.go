package passage

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
)

// Target is the target of one move.
type Target struct {
	Address netip.Addr // of this host
	Earlier string     // a place that the source may know already; empty: none
	Move    Move
	Streams int // the move's connections
	Log     *slog.Logger
}

// Listener waits at a target for the source of one move.
type Listener struct {
	Place Place

	target   Target
	listener net.Listener
	ctx      context.Context // ends with Close
	end      context.CancelFunc

	mu       sync.Mutex
	unproven []*net.TCPConn // the oldest first
	closed   int            // how many strangers' connections were
}

// mostUnproven is how many connections may be waited for at once to prove themselves. When there is one more, the oldest is
// closed: the source needs a moment, and strangers who wait must not keep it out.
const mostUnproven = 64

// mostTold is how many strangers are logged.
const mostTold = 20

// acceptPause keeps a Listener from spinning when there are no descriptors.
const acceptPause = 100 * time.Millisecond

// Listen opens a Listener, at the earlier place or at a new port of the address.
func (t Target) Listen(ctx context.Context) (*Listener, error) {
	at := Place{netip.AddrPortFrom(t.Address, 0), rand.Text()}
	if t.Earlier != "" {
		var err error
		if at, err = ParsePlace(t.Earlier); err != nil {
			return nil, err
		}
		at.Address = host.Again(at.Address, t.Address)
	}
	l, where, err := host.Listen(ctx, at.Address)
	if err != nil {
		return nil, err
	}
	at.Address = where
	d := &Listener{Place: at, target: t, listener: l}
	d.ctx, d.end = context.WithCancel(context.WithoutCancel(ctx))
	return d, nil
}

// Close closes the Listener and what it has not handed over.
func (d *Listener) Close() {
	d.end()
	d.listener.Close()
}

// Await returns the connections of the source, in their order, once all are there and something has come on the
// first. A stranger's is closed and logged. A source that goes away before it has sent anything may come again. It
// returns an error after Close.
func (d *Listener) Await() ([]*net.TCPConn, error) {
	var all sync.WaitGroup
	defer all.Wait()
	defer d.Close()
	proven := make(chan numbered)
	all.Go(func() { d.accept(&all, proven) })
	s := set{streams: make([]*net.TCPConn, d.target.Streams)}
	defer s.drop()
	spoke := make(chan *net.TCPConn)
	for {
		select {
		case <-d.ctx.Done():
			return nil, net.ErrClosed
		case c := <-proven:
			if !s.add(c) {
				c.Close()
			} else if s.whole() {
				first := s.streams[0]
				all.Go(func() {
					if heard(first) != nil {
						return
					}
					select {
					case spoke <- first:
					case <-d.ctx.Done():
					}
				})
			}
		case first := <-spoke:
			if s.whole() && first == s.streams[0] {
				out := s.streams
				s.streams = nil
				return out, nil
			}
		}
	}
}

// numbered is a connection that has proved which of the source's it is.
type numbered struct {
	*net.TCPConn
	stream int
}

// set is a source's connections, which come in their order.
type set struct {
	streams []*net.TCPConn
	have    int
}

func (s *set) whole() bool { return s.have == len(s.streams) }

// add takes a connection, and tells the source so. The first of a source that begins again replaces those before.
func (s *set) add(c numbered) bool {
	if c.stream == 0 {
		s.drop()
	}
	if c.stream != s.have || s.whole() || sayTaken(c) != nil {
		return false
	}
	s.streams[s.have] = c.TCPConn
	s.have++
	return true
}

// drop closes all of them.
func (s *set) drop() {
	for i, c := range s.streams {
		if c != nil {
			c.Close()
		}
		s.streams[i] = nil
	}
	s.have = 0
}

// accept greets whoever connects, until Close.
func (d *Listener) accept(all *sync.WaitGroup, proven chan<- numbered) {
	for {
		conn, err := d.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(acceptPause)
			continue
		}
		d.enter(conn.(*net.TCPConn))
		all.Go(func() { d.admit(conn.(*net.TCPConn), proven) })
	}
}

// enter counts a connection that has not proved itself, and closes the oldest if there are too many.
func (d *Listener) enter(conn *net.TCPConn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.unproven = append(d.unproven, conn); len(d.unproven) > mostUnproven {
		d.unproven[0].Close()
		d.unproven = d.unproven[1:]
	}
}

// leave undoes enter. It returns how many strangers there were, this one included if it is one.
func (d *Listener) leave(conn *net.TCPConn, stranger bool) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unproven = slices.DeleteFunc(d.unproven, func(c *net.TCPConn) bool { return c == conn })
	if stranger {
		d.closed++
	}
	return d.closed
}

// admit greets one connection.
func (d *Listener) admit(conn *net.TCPConn, proven chan<- numbered) {
	stop := context.AfterFunc(d.ctx, func() { conn.Close() })
	stream, err := d.Place.meet(conn, d.target.Move)
	if err == nil && stream >= d.target.Streams {
		err = ErrStranger
	}
	if err == nil {
		err = tie(conn)
	}
	strangers := d.leave(conn, err != nil)
	if !stop() || err != nil {
		conn.Close()
		if d.ctx.Err() == nil && strangers <= mostTold {
			d.target.Log.Warn("a connection was closed that is not the source's of a guest that moves here", "guest", d.target.Move.Guest, "from", conn.RemoteAddr(), "cause", err)
		}
		return
	}
	select {
	case proven <- numbered{conn, stream}:
	case <-d.ctx.Done():
		conn.Close()
	}
}

// heard returns when a connection has something to be read, and leaves it there.
func heard(conn *net.TCPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var got error
	err = raw.Read(func(fd uintptr) bool {
		var first [1]byte
		n, _, err := unix.Recvfrom(int(fd), first[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			return false
		}
		if got = err; err == nil && n == 0 {
			got = net.ErrClosed
		}
		return true
	})
	return errors.Join(err, got)
}
