package wire

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"pagurus/fleet"
)

// The most connections of one caller. A command line or an agent needs a few. For each job
// whose guest 0 is on its host, an agent holds one more for input and two for output. Many
// hosts may share an address. Root is not limited: a lab's agents all use one socket as
// root.
const (
	connectionsPerUser    = 256
	connectionsPerAddress = 4096
)

// counting is a listener that counts each caller's connections. Requests on excess
// connections get an error; beyond twice the limit, connections are closed.
type counting struct {
	net.Listener
	most int

	mu sync.Mutex
	by map[string]int
}

func newCounting(l net.Listener, most int) *counting {
	return &counting{Listener: l, most: most, by: map[string]int{}}
}

// Bounded closes connections of an address beyond most, before anything is read of them.
func Bounded(l net.Listener, most int) net.Listener { return newCounting(l, most/2) }

// counted is a connection that counts until it is closed.
type counted struct {
	net.Conn
	id    *Peer // nil: not known from the connection
	over  bool  // one too many
	leave func()
}

// Accept waits for the next connection within twice the limit.
func (l *counting) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.count(conn); c != nil {
			return c, nil
		}
		_ = conn.Close() // it was not used
	}
}

// count returns nil for a connection that must be closed.
func (l *counting) count(conn net.Conn) *counted {
	c := &counted{Conn: conn, leave: func() {}}
	who := ""
	if u, local := conn.(*net.UnixConn); local {
		id, err := peer(u)
		if err != nil {
			return nil // already gone
		}
		if c.id = &id; id.UID == 0 {
			return c
		}
		who = strconv.FormatUint(uint64(id.UID), 10)
	} else {
		who = callersAt(conn.RemoteAddr().String())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by[who] >= 2*l.most {
		return nil
	}
	l.by[who]++
	c.over = l.by[who] > l.most
	c.leave = sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.by[who]--; l.by[who] == 0 {
			delete(l.by, who)
		}
	})
	return c
}

// callersAt names those who count as one caller over TCP: an address, or with IPv6 the 64 bits of a
// network, in which every machine may take as many addresses as it likes.
func callersAt(from string) string {
	at, err := netip.ParseAddrPort(from)
	if err != nil {
		return ""
	}
	ip := at.Addr().Unmap()
	if ip.Is6() && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() {
		network, _ := ip.WithZone("").Prefix(64) // of IPv6 it never fails
		return network.String()
	}
	return ip.String()
}

// sessionsMost is how many sessions a host's agent may have at once. It needs one, and another when it comes
// back before the first was missed. Each may have the controller read a long message, before anything else
// of it was looked at.
const sessionsMost = 4

// sessionsOf counts the sessions of each host's agent.
type sessionsOf struct {
	mu sync.Mutex
	by map[fleet.HostID]int
}

// enter counts one more, until leave. Root on the controller's machine may have any number: a lab's agents
// all call as root.
func (o *sessionsOf) enter(id fleet.HostID) (leave func(), err error) {
	if id == "" {
		return func() {}, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.by[id] >= sessionsMost {
		return nil, &Error{http.StatusTooManyRequests, fmt.Sprintf("the agent of %s has too many sessions: end all agents of that host but one", id)}
	}
	if o.by == nil {
		o.by = map[fleet.HostID]int{}
	}
	o.by[id]++
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.by[id]--; o.by[id] == 0 {
			delete(o.by, id)
		}
	}, nil
}

// Close closes the connection and stops counting it.
func (c *counted) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// pieceLimit is how long a reader may take for each writePiece of an answer: a slow link can
// get large files, and a reader that does not read is disconnected.
const (
	pieceLimit = 30 * time.Second
	writePiece = 64 << 10
)

// patient is a response whose deadline is renewed with every piece.
type patient struct {
	http.ResponseWriter
	limit time.Duration
	until time.Time // later than that nothing is written; zero: no such limit
}

// Unwrap gives http.ResponseController the inner writer.
func (p patient) Unwrap() http.ResponseWriter { return p.ResponseWriter }

func (p patient) renew() {
	at := time.Now().Add(p.limit)
	if !p.until.IsZero() && p.until.Before(at) {
		at = p.until
	}
	// All our connections support it; a broken one fails at the write.
	_ = http.NewResponseController(p.ResponseWriter).SetWriteDeadline(at)
}

// WriteHeader begins the answer.
func (p patient) WriteHeader(status int) {
	p.renew()
	p.ResponseWriter.WriteHeader(status)
}

// Write sends all of b, however long a slow reader takes.
func (p patient) Write(b []byte) (n int, err error) {
	for {
		p.renew()
		m, err := p.ResponseWriter.Write(b[n:min(len(b), n+writePiece)])
		if n += m; err != nil || n == len(b) {
			return n, err
		}
	}
}
