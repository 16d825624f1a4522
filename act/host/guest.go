package host

import (
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"pagurus/fleet"
	"pagurus/internal/note"
)

// Record is what every driver stores about a guest for later agents. A driver's own record
// embeds it.
type Record struct {
	Guest     fleet.GuestID     `json:"guest"`
	Gen       uint64            `json:"gen"`
	Process   Process           `json:"process"` // the first one; before a container has arrived, the process that holds its place
	StartedAt time.Time         `json:"started_at"`
	Complete  bool              `json:"complete"` // Start or Receive finished; incomplete guests are destroyed
	Incoming  fleet.MigrationID `json:"incoming,omitempty"`
	Target    bool              `json:"target,omitempty"` // made by Receive and not yet resumed
	Listen    string            `json:"listen,omitempty"` // where Receive's guest is received
}

// Shared returns the part of a record that all drivers have.
func (r Record) Shared() Record { return r }

// startAgain answers Start of a guest that is here.
func (r Record) startAgain() error {
	if r.Target {
		return fmt.Errorf("it is here as the target of migration %s", r.Incoming)
	}
	return nil
}

// receiveAgain answers Receive of a guest that is here.
func (r Record) receiveAgain(m fleet.MigrationID) (listen string, err error) {
	switch {
	case !r.Target:
		return "", fmt.Errorf("it is here already")
	case r.Incoming == m:
		return r.Listen, nil
	}
	// It may be all there is of the guest: only Stop may destroy it.
	return "", r.startAgain()
}

// recordFile is the record's name in a guest's folder.
const recordFile = "guest.json"

// ReadRecord reads the record in a guest's folder. A missing one is an fs.ErrNotExist.
func ReadRecord[R any](dir string) (r R, err error) {
	err = note.Load(filepath.Join(dir, recordFile), &r)
	return r, err
}

// WriteRecord replaces the record in a guest's folder atomically. A guest's own account may be
// able to write in the folder, but it is sticky: nobody can replace or pre-create root's files
// there. Nothing is synced: a host that loses power has lost the guest as well.
func WriteRecord[R interface{ Shared() Record }](dir string, r R) error {
	if err := note.Replace(filepath.Join(dir, recordFile), r); err != nil {
		return fmt.Errorf("remember guest %s: %w", r.Shared().Guest, err)
	}
	return nil
}

// Stored is what Guest asks of a driver's record R. A Clone can be changed without changing the
// record.
type Stored[R any] interface {
	Shared() Record
	Clone() R
}

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
	r := g.Record.Clone()
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
