package wire

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"pagurus/serve/identity"
)

// failover is how long a client with several controllers waits for one that leads. A dead one is
// replaced within some ten seconds, on a busy machine in more.
const failover = time.Minute

// addresses are where the controllers are called. The one that answered last is called first.
type addresses struct {
	mu     sync.Mutex
	own    string // as the user wrote it
	all    []string
	at     int
	folder string // of the credentials beside which they are kept; empty: nowhere
}

// sockets are those of all controllers of this machine: beside controller.sock a lab has
// controller-NAME.sock.
func sockets(path string) *addresses {
	more, _ := filepath.Glob(strings.TrimSuffix(path, ".sock") + "-*.sock") // a bad pattern matches nothing
	return &addresses{own: path, all: append([]string{path}, more...)}
}

// remembered are an address and those that were learned before.
func remembered(own, folder string) *addresses {
	all := append([]string{own}, identity.Controllers(folder)...)
	return &addresses{own: own, all: unique(all), folder: folder}
}

func unique(list []string) (out []string) {
	for _, s := range list {
		if s != "" && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// dial connects to the first address that answers.
func (a *addresses) dial(ctx context.Context, network string, by *net.Dialer) (conn net.Conn, err error) {
	a.mu.Lock()
	tries := len(a.all)
	a.mu.Unlock()
	for range tries {
		at := a.current()
		if conn, err = by.DialContext(ctx, network, at); err == nil || ctx.Err() != nil {
			return conn, err
		}
		a.after(at)
	}
	return nil, err
}

func (a *addresses) current() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all[a.at]
}

func (a *addresses) several() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.all) > 1
}

// after turns to the next address if this one is still current.
func (a *addresses) after(failed string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all[a.at] == failed {
		a.at = (a.at + 1) % len(a.all)
	}
}

// learn takes over what a controller says: the addresses of all. The one by which it was found stays, too,
// since those may be of another network.
func (a *addresses) learn(said string) {
	if said == "" || a.folder == "" {
		return
	}
	told := unique(strings.Split(said, ","))
	a.mu.Lock()
	defer a.mu.Unlock()
	all := unique(append(slices.Clone(told), a.own))
	if slices.Equal(all, a.all) {
		return
	}
	current := a.all[a.at]
	a.all, a.at = all, max(0, slices.Index(all, current))
	_ = identity.SaveControllers(a.folder, told) // a folder that cannot be written: they are learned again
}

// turn has the next connection go to another controller, if there are several, after a request that began when
// one was current. If another request has turned meanwhile, or a connection that failed, the one that is current now was
// not asked yet.
func (c *Client) turn(asked string, err error) {
	if c.addresses == nil || !c.addresses.several() || !errors.Is(err, ErrNoController) {
		return
	}
	c.addresses.after(asked)
	c.http.CloseIdleConnections()
}

// asked is the address that is called first now; empty: it does not change.
func (c *Client) asked() string {
	if c.addresses == nil {
		return ""
	}
	return c.addresses.current()
}

// untilOneLeads repeats a request while no controller leads, if there are several, or while the one that does takes no more of this caller. A request may be
// repeated: a change has an ID, and bytes of a stream have an offset.
func (c *Client) untilOneLeads(ctx context.Context, request func() (*http.Response, error)) (*http.Response, error) {
	began, pause := time.Now(), firstPause
	for {
		asked := c.asked()
		r, err := request()
		if err == nil {
			return r, nil
		}
		if restUntil(ctx, began, err) {
			continue
		}
		c.turn(asked, err)
		if c.addresses == nil || !c.addresses.several() && !c.told(err) || !errors.Is(err, ErrNoController) || time.Since(began) > failover {
			return nil, err
		}
		if rest(ctx, &pause); ctx.Err() != nil {
			return nil, err
		}
	}
}

// restUntil waits until a request that passes may be made again, of somebody who began to ask then. false: it does not pass, or it takes too long.
func restUntil(ctx context.Context, began time.Time, err error) bool {
	wait := (*later)(nil)
	if !errors.As(err, &wait) || time.Since(began)+wait.after >= againLongest {
		return false
	}
	pause := 2 * wait.after // of which rest waits at least half
	rest(ctx, &pause)
	return ctx.Err() == nil
}

// connect opens a WebSocket, when the controller takes one more of this caller.
func (c *Client) connect(ctx context.Context, path string) (*websocket.Conn, error) {
	for began := time.Now(); ; {
		conn, err := c.connectOnce(ctx, path)
		if err == nil || !restUntil(ctx, began, err) {
			return conn, err
		}
	}
}

// told reports whether one that joins, and knows one address only, has been told by the controller there that another
// one is about to lead.
func (c *Client) told(err error) bool { return c.token != "" && errors.As(err, new(*Error)) }

// rest waits before the next try, with jitter so that clients do not all reconnect at once.
func rest(ctx context.Context, pause *time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(*pause/2 + rand.N(*pause/2)):
	}
	*pause = min(2**pause, lastPause)
}
