package transfer

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"pagurus/act/container/framing"
	"pagurus/act/host"
	"pagurus/fleet"
)

// Listener accepts connections from the source of one guest.
type Listener struct {
	Place framing.Place // where it listens

	guest     fleet.GuestID
	migration fleet.MigrationID
	log       *slog.Logger
	listener  net.Listener
	taking    sync.Mutex // one connection is served at a time

	mu       sync.Mutex    // guards the fields below
	unproven []net.Conn    // that have not shown the word yet, the oldest first
	conn     *framing.Conn // the connection being served
	pageConn *os.File      // connection to the page server; nil: there is none
	closed   bool
}

// Listen opens a Listener for the source whose hello names the same guest and migration as who.
// It listens at address, or at an earlier place that a source may know already (empty: none).
func Listen(ctx context.Context, address netip.Addr, earlier string, who Hello, log *slog.Logger) (*Listener, error) {
	at := framing.Place{Address: netip.AddrPortFrom(address, 0), Word: rand.Text()}
	if earlier != "" {
		var err error
		if at, err = framing.ParsePlace(earlier); err != nil {
			return nil, err
		}
		at.Address = host.Again(at.Address, address)
	}
	l, where, err := host.Listen(ctx, at.Address)
	if err != nil {
		return nil, err
	}
	at.Address = where
	return &Listener{Place: at, guest: who.Guest, migration: who.Migration, log: log, listener: l}, nil
}

// Close closes the Listener and the connection that is being served.
func (d *Listener) Close() {
	d.mu.Lock()
	d.closed = true
	conn := d.conn
	d.mu.Unlock()
	d.listener.Close()
	if conn != nil {
		conn.Close()
	}
	if pages := d.PageConn(); pages != nil {
		pages.Close()
	}
}

// acceptPause keeps the Listener from spinning when it has run out of descriptors.
const acceptPause = 100 * time.Millisecond

// mostUnproven is how many connections may be waited for to show the word. Each has buffers of
// half a MiB for as long as a hello may take. A source needs two at a time. When there is one more, the oldest is
// closed of the address that has the most: the source needs a moment, and strangers who wait must not keep it out, however soon they come again.
const mostUnproven = 16

// Serve calls take for each connection from the source, until Close. It returns when no
// call of take runs any more.
func (d *Listener) Serve(take func(*framing.Conn, Hello) error) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		raw, err := d.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(acceptPause)
			continue
		}
		d.enter(raw)
		all.Go(func() {
			c := framing.New(raw)
			defer c.Close()
			if err := d.admit(c, raw, take); err != nil && !framing.Over(err) {
				d.log.Warn("guest could not be received", "guest", d.guest, "from", raw.RemoteAddr(), "cause", err)
			}
		})
	}
}

// enter counts a connection that has to show the word, and closes one if there are too many.
func (d *Listener) enter(raw net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.unproven = append(d.unproven, raw); len(d.unproven) > mostUnproven {
		at := superfluous(d.unproven)
		d.unproven[at].Close()
		d.unproven = slices.Delete(d.unproven, at, at+1)
	}
}

// superfluous is the oldest connection of the address that has the most; of several such addresses, of the one that was here first.
func superfluous(all []net.Conn) (at int) {
	many := map[string]int{}
	for _, c := range all {
		many[address(c)]++
	}
	for i, c := range all {
		if many[address(c)] > many[address(all[at])] {
			at = i
		}
	}
	return at
}

func address(c net.Conn) string {
	if to, is := c.RemoteAddr().(*net.TCPAddr); is {
		return to.IP.String()
	}
	return ""
}

// admit serves one connection. A new connection ends the previous one.
func (d *Listener) admit(c *framing.Conn, raw net.Conn, take func(*framing.Conn, Hello) error) error {
	h, err := d.greet(c)
	d.mu.Lock()
	d.unproven = slices.DeleteFunc(d.unproven, func(c net.Conn) bool { return c == raw })
	d.mu.Unlock()
	if err != nil {
		return err
	}
	if h.PageServer {
		return d.keepPageConn(c)
	}
	d.mu.Lock()
	if d.conn != nil {
		d.conn.Close()
	}
	d.conn = c
	closed := d.closed
	d.mu.Unlock()
	if closed {
		return net.ErrClosed
	}
	d.taking.Lock()
	defer d.taking.Unlock()
	return take(c, h)
}

// greet reads the hello and checks that it comes from the guest's source.
func (d *Listener) greet(c *framing.Conn) (h Hello, err error) {
	if h, err = Meet(c); err != nil {
		return h, err
	}
	if h.Word != d.Place.Word || h.Guest != d.guest || h.Migration != d.migration {
		return h, errors.New("the connection is for another guest")
	}
	if why := apart(h.Protocol, fleet.Protocol()); why != "" && !h.Only { // all versions report the outcome of a switch alike
		return h, errors.Join(errors.New(why), Reply(c, Answer{Failure: why}))
	}
	return h, nil
}

// keepPageConn keeps a connection to the page server.
func (d *Listener) keepPageConn(c *framing.Conn) error {
	file, err := c.File()
	if err != nil {
		return err
	}
	d.mu.Lock()
	was := d.pageConn
	d.pageConn = file
	if d.closed {
		was, d.pageConn = file, nil
	}
	d.mu.Unlock()
	if was != nil {
		was.Close()
	}
	return Reply(c, Answer{})
}

// PageConn returns the connection to the page server, which the caller then owns, or nil
// if there is none.
func (d *Listener) PageConn() *os.File {
	d.mu.Lock()
	defer d.mu.Unlock()
	file := d.pageConn
	d.pageConn = nil
	return file
}
