package wire

import (
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// How many connections one caller may hold. A command line needs a few, and so
// does an agent, but one waits for input and two carry output for each job
// whose first guest it has; and many hosts may come from one address. Root is
// not counted: the agents of a lab are all root's on one socket.
const (
	connectionsPerUser    = 256
	connectionsPerAddress = 1024
)

// counting is a listener that counts the connections of each caller. One too many is told so when
// it asks something; with as many again nothing is said any more.
type counting struct {
	net.Listener
	most int

	mu sync.Mutex
	by map[string]int
}

func newCounting(l net.Listener, most int) *counting {
	return &counting{Listener: l, most: most, by: map[string]int{}}
}

// counted is a connection that counts until it is closed.
type counted struct {
	net.Conn
	id    *Peer // nil: not known from the connection
	over  bool  // one too many
	leave func()
}

// Accept waits for the next connection that is not far too many.
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

// count returns nil for a connection that cannot even be answered.
func (l *counting) count(conn net.Conn) *counted {
	c := &counted{Conn: conn, leave: func() {}}
	who := ""
	if u, local := conn.(*net.UnixConn); local {
		id, err := peer(u)
		if err != nil {
			return nil // it is gone already
		}
		if c.id = &id; id.UID == 0 {
			return c
		}
		who = strconv.FormatUint(uint64(id.UID), 10)
	} else if host, _, err := net.SplitHostPort(conn.RemoteAddr().String()); err == nil {
		who = host
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

// Close closes the connection, which no longer counts then.
func (c *counted) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// pieceLimit is how long a reader may take for each writePiece of an answer:
// a slow line gets large files, and who does not read is let go.
const (
	pieceLimit = 30 * time.Second
	writePiece = 64 << 10
)

// patient is an answer whose deadline is set again with every piece of it.
type patient struct {
	http.ResponseWriter
	limit time.Duration
}

// Unwrap is how http.ResponseController finds what is below.
func (p patient) Unwrap() http.ResponseWriter { return p.ResponseWriter }

func (p patient) renew() {
	// Every connection we make can; one that is broken tells by the write.
	_ = http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Now().Add(p.limit))
}

// WriteHeader begins the answer.
func (p patient) WriteHeader(status int) {
	p.renew()
	p.ResponseWriter.WriteHeader(status)
}

// Write sends all of b, however long that takes a reader that reads.
func (p patient) Write(b []byte) (n int, err error) {
	for {
		p.renew()
		m, err := p.ResponseWriter.Write(b[n:min(len(b), n+writePiece)])
		if n += m; err != nil || n == len(b) {
			return n, err
		}
	}
}
