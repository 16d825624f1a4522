package host

import (
	"fmt"
	"sync"
	"time"

	"pagurus/fleet"
)

// Guest is what every driver holds of a guest that it watches. A driver's own guest embeds it.
type Guest[R Stored[R]] struct {
	ID    fleet.GuestID
	Dir   string
	Died  chan struct{} // closed when the process has ended
	Ended chan struct{} // closed when nothing is left of it on the host
	Left  error         // why something is left; set before Ended is closed

	Mu       sync.Mutex // guards what follows, and what a driver adds
	Record   R
	Released bool // no longer watched; it runs on
	Stopped  bool // its end is intended
}

// NewGuest returns a guest with this folder and record.
func NewGuest[R Stored[R]](dir string, r R) Guest[R] {
	return Guest[R]{ID: r.Shared().Guest, Dir: dir, Record: r, Died: make(chan struct{}), Ended: make(chan struct{})}
}

// Dead reports whether the guest's process has ended.
func (g *Guest[R]) Dead() bool {
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
func (g *Guest[R]) IsStopped() bool {
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

func (g *Guest[R]) folder() string { return g.Dir }

// stop notes that the guest's end is intended.
func (g *Guest[R]) stop() {
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
