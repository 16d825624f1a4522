package host

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// Guest is what every driver holds of a guest that it watches. A driver's own guest embeds it.
type Guest[R Stored[R]] struct {
	common
	Record R // guarded by Mu
}

// common is what is the same for every record.
type common struct {
	ID    fleet.GuestID
	Dir   string
	Died  chan struct{} // closed when the process has ended
	Ended chan struct{} // closed when nothing is left of it on the host
	Left  error         // why something is left; set before Ended is closed

	Linking sync.Mutex // held while a connection to the guest agent is made, or may not be made; before Mu

	Mu       sync.Mutex // guards what follows, and what a driver adds
	Released bool       // no longer watched; it runs on
	Stopped  bool       // its end is intended
	link     net.Conn   // to the guest agent; nil: none
}

// NewGuest returns a guest with this folder and record.
func NewGuest[R Stored[R]](dir string, r R) Guest[R] {
	return Guest[R]{common: common{ID: r.Shared().Guest, Dir: dir, Died: make(chan struct{}), Ended: make(chan struct{})}, Record: r}
}

// Dead reports whether the guest's process has ended.
func (g *common) Dead() bool {
	select {
	case <-g.Died:
		return true
	default:
		return false
	}
}

// Lives reports whether the guest was made to the end and has not ended.
func (g *Guest[R]) Lives() bool { return g.shared().Complete && !g.Dead() }

// IsStopped reports whether the guest's end is intended.
func (g *common) IsStopped() bool {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	return g.Stopped
}

// Remembered returns the guest's record.
func (g *Guest[R]) Remembered() R {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	return g.Record
}

// Remember changes the guest's record. After an error it is unchanged.
func (g *Guest[R]) Remember(change func(*R)) error {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	if g.Released {
		return ErrClosed
	}
	r := g.Record.Ours()
	change(&r)
	if err := WriteRecord(g.Dir, r); err != nil {
		return err
	}
	g.Record = r
	return nil
}

func (g *Guest[R]) shared() Record { return g.Remembered().Shared() }

func (g *common) watched() *common { return g }

// Dial connects to a socket of the guest's process, and to nothing that may have been put in its place.
func (g *Guest[R]) Dial(ctx context.Context, socket string) (net.Conn, error) {
	folder, err := os.OpenFile(g.Dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	return DialSocket(ctx, folder, socket, g.shared().Process.PID)
}

// Relink connects to the guest agent by dial, and ends the connection before. After an error there is none.
func (g *common) Relink(dial func() (net.Conn, error)) (net.Conn, error) {
	g.Linking.Lock()
	defer g.Linking.Unlock()
	g.Unlink()
	conn, err := dial()
	if err != nil {
		return nil, err
	}
	g.Mu.Lock()
	defer g.Mu.Unlock()
	if g.Released {
		conn.Close()
		return nil, ErrClosed
	}
	g.link = conn
	return conn, nil
}

// Unlink ends the connection to the guest agent.
func (g *common) Unlink() {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	if g.link != nil {
		g.link.Close()
		g.link = nil
	}
}

// Release notes that the guest is no longer watched, and ends the connection to the guest agent.
func (g *common) Release() {
	g.Mu.Lock()
	g.Released = true
	g.Mu.Unlock()
	g.Unlink()
}

// stop notes that the guest's end is intended.
func (g *common) stop() {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	g.Stopped = true
}

// awaitEnd waits until nothing is left of a guest that was killed.
func (g *Guest[R]) awaitEnd() error {
	select {
	case <-g.Ended:
		return g.Left
	case <-time.After(DeathLimit):
		return fmt.Errorf("process %d was killed and does not end", g.shared().Process.PID)
	}
}
