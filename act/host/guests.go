package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"pagurus/fleet"
	"pagurus/internal/fault"
)

// ErrClosed says that the driver was closed.
var ErrClosed = errors.New("the driver was closed")

// endsKept limits how many guests that ended by themselves are remembered.
const endsKept = 256

// Watched is a pointer to a driver's guest, which embeds a Guest.
type Watched interface {
	comparable
	Dead() bool
	Lives() bool
	Dial(ctx context.Context, socket string) (net.Conn, error)
	shared() Record
	watched() *common
	awaitEnd() error
}

// Guests are the guests that a driver watches, and the remains of those that ended by
// themselves.
type Guests[G Watched] struct {
	Locks
	Watches sync.WaitGroup // what Close waits for
	Kept    Remains        // also for later drivers

	Kill func(g G) error              // ends a watched guest's processes; then the driver's watch cleans up
	Wipe func(id fleet.GuestID) error // removes what is left of a guest that is not watched

	mu     sync.Mutex // guards the fields below
	closed bool
	here   map[fleet.GuestID]G
	ends   map[fleet.GuestID]fleet.Remains
}

// Add adds a guest and runs watch until it returns. After an error it did neither.
func (a *Guests[G]) Add(id fleet.GuestID, g G, watch func()) error {
	return a.Go(func() {
		if a.here == nil {
			a.here = map[fleet.GuestID]G{}
		}
		a.here[id] = g
	}, watch)
}

// Go does first and then runs watch beside the caller, unless Close was called. After an error
// it did neither.
func (a *Guests[G]) Go(first, watch func()) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return ErrClosed
	}
	first()
	a.Watches.Go(watch)
	return nil
}

// Find returns a guest, or nil. The guest is also returned with ErrClosed.
func (a *Guests[G]) Find(id fleet.GuestID) (G, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return a.here[id], ErrClosed
	}
	return a.here[id], nil
}

// All returns all guests.
func (a *Guests[G]) All() (map[fleet.GuestID]G, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, ErrClosed
	}
	return maps.Clone(a.here), nil
}

// Remove removes a guest. Nothing of it may be left on the host.
func (a *Guests[G]) Remove(id fleet.GuestID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.here, id)
}

// Close releases all guests and waits until all watching has ended.
func (a *Guests[G]) Close(release func(G)) {
	a.mu.Lock()
	a.closed = true
	all := slices.Collect(maps.Values(a.here))
	a.mu.Unlock()
	for _, g := range all {
		release(g)
	}
	a.Watches.Wait()
}

// Remember notes how a guest ended by itself, with the ends of its console and log. After
// an error a later driver knows less of it.
func (a *Guests[G]) Remember(id fleet.GuestID, console, log *os.File, explain Explain) (fleet.Remains, error) {
	r, err := a.Kept.KeepRemains(id, console, log, explain)
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.ends) >= endsKept || a.ends == nil {
		a.ends = map[fleet.GuestID]fleet.Remains{}
	}
	a.ends[id] = r
	return r, err
}

// Adopt takes over a guest that an earlier agent left in a folder, if its process still runs: attach takes the handle, also when it returns an
// error. Of any other it removes what is left, after ended if it has ended since.
func Adopt[R Stored[R], G Watched](a *Guests[G], dir string, attach func(R, *os.File) error, ended func()) error {
	id := fleet.GuestID(filepath.Base(dir))
	if id.Check() != nil {
		return nil // not ours
	}
	r, err := ReadRecord[R](dir)
	if errors.Is(err, ErrNewer) {
		return err // the guest is not ours to touch
	}
	if is := r.Shared(); err == nil && is.Complete && is.Guest == id {
		handle, err := is.Process.Watch()
		if err == nil {
			return attach(r, handle)
		}
		if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		ended() // while no agent was here
	}
	return a.Wipe(id)
}

// Ended returns a channel that is closed when the guest is no longer on this host. By then nothing of the guest is left.
func (a *Guests[G]) Ended(id fleet.GuestID) <-chan struct{} {
	if g, _ := a.Find(id); g != *new(G) {
		return g.watched().Ended
	}
	over := make(chan struct{})
	close(over)
	return over
}

// Link opens the byte stream to the guest agent, on a socket of the guest's process. A second call ends the first stream. The
// stream may break at any byte.
func (a *Guests[G]) Link(ctx context.Context, id fleet.GuestID, socket string) (io.ReadWriteCloser, error) {
	var err error = fleet.ErrAbsent
	if g, _ := a.Find(id); g != *new(G) {
		var conn net.Conn
		if conn, err = g.watched().Relink(func() (net.Conn, error) { return g.Dial(ctx, socket) }); err == nil {
			return conn, nil
		}
	}
	return nil, fmt.Errorf("reach the agent in guest %s: %w", id, err)
}

// Ending returns what is known of a guest that ended by itself; nil: it is here, or was stopped since.
func (a *Guests[G]) Ending(id fleet.GuestID) *fleet.Remains {
	if g, _ := a.Find(id); g != *new(G) && !g.Dead() {
		return nil
	}
	a.mu.Lock()
	r, known := a.ends[id]
	a.mu.Unlock()
	if known {
		return &r
	}
	return a.Kept.Find(id)
}

// LastWords returns, for people to read, what a guest that is here said last; words reads it in
// the guest's folder. It is empty if the guest said nothing.
func (a *Guests[G]) LastWords(id fleet.GuestID, words func(dir string) string) string {
	g, _ := a.Find(id)
	var none G
	if g == none || g.Dead() { // its folder may be gone before its name is
		if r := a.Ending(id); r != nil {
			return r.Sentence()
		}
		return ""
	}
	return words(g.watched().Dir)
}

// Limits for hearing of the end of a guest that could not be made.
const (
	hearLimit = 100 * time.Millisecond
	hearEvery = 10 * time.Millisecond
)

// hearEnd lets the watch of a guest that could not be made note how it ended, if its process was killed: what kills it is
// noticed by an error of making it, perhaps before the watch wakes up.
func (a *Guests[G]) hearEnd(id fleet.GuestID) {
	g, _ := a.Find(id)
	if g == *new(G) {
		return
	}
	for since := time.Now(); time.Since(since) < hearLimit; time.Sleep(hearEvery) {
		if g.Dead() {
			_ = g.awaitEnd() // Destroy tells
			return
		}
	}
}

// claim locks the guest's ID and finds the guest if it lives here. If it does not, claim
// destroys what is left of it.
func (a *Guests[G]) claim(ctx context.Context, id fleet.GuestID) (release func(), g G, err error) {
	var none G
	if err := id.Check(); err != nil {
		return nil, none, err
	}
	if release, err = a.Lock(ctx, id); err != nil {
		return nil, none, err
	}
	g, err = a.Find(id)
	if err == nil && g != none && g.Lives() {
		return release, g, nil
	}
	if err == nil {
		err = a.Destroy(id)
	}
	if err != nil {
		release()
		return nil, none, err
	}
	return release, none, nil
}

// claimFor is claim for a task that makes the guest here. It also destroys what an older generation
// left: see overtaken. How an earlier one ended is forgotten.
func (a *Guests[G]) claimFor(ctx context.Context, id fleet.GuestID, gen uint64) (release func(), g G, err error) {
	var none G
	release, g, err = a.claim(ctx, id)
	if err != nil || g != none && !g.shared().overtaken(gen) {
		return release, g, err
	}
	if g != none {
		if err := a.Destroy(id); err != nil {
			release()
			return nil, none, err
		}
	}
	a.forgetEnd(id)
	return release, none, nil
}

// Start makes a guest that should run here. If it runs already, Start does nothing. What is here as
// the target of a migration of an older generation goes: the job has begun again before the host was
// told to discard it. After an error nothing of the guest is left, unless it is here as the target of
// a migration: then it is not touched.
func (a *Guests[G]) Start(ctx context.Context, t fleet.Task, create func() error) error {
	id := t.Guest.ID
	release, g, err := a.claimFor(ctx, id, t.Guest.Gen)
	if err == nil {
		defer release()
		if g != *new(G) {
			err = g.shared().startAgain()
		} else if err = create(); err != nil {
			a.hearEnd(id)
			err = errors.Join(err, a.Destroy(id))
		}
	}
	if err != nil {
		return fmt.Errorf("start guest %s: %w", id, err)
	}
	return nil
}

// Receive makes what receives a guest, and returns the address where. A repeated call for the
// same migration returns the same address. After an error nothing of the guest is left, unless
// it was here already: then it is not touched.
func (a *Guests[G]) Receive(ctx context.Context, t fleet.Task, create func() (string, error)) (listen string, err error) {
	id := t.Guest.ID
	release, g, err := a.claimFor(ctx, id, t.Guest.Gen)
	if err == nil {
		defer release()
		if g != *new(G) {
			listen, err = g.shared().receiveAgain(t.Order.Migration)
		} else if listen, err = create(); err != nil {
			err = errors.Join(err, a.Destroy(id))
		}
	}
	if err != nil {
		return "", fmt.Errorf("receive guest %s: %w", id, err)
	}
	return listen, nil
}

// Restore makes a guest from a checkpoint. If it was restored already in this generation, Restore does
// nothing. After an error nothing of the guest is left, unless it was here already: then it is
// not touched.
func (a *Guests[G]) Restore(ctx context.Context, id fleet.GuestID, gen uint64, create func() error) error {
	release, g, err := a.claimFor(ctx, id, gen)
	if err == nil {
		defer release()
		if g != *new(G) {
			err = g.shared().restoreAgain(gen)
		} else if err = create(); err != nil {
			a.hearEnd(id)
			err = errors.Join(err, a.Destroy(id))
		}
	}
	if err != nil {
		return fmt.Errorf("restore guest %s: %w", id, err)
	}
	return nil
}

// Destroy removes all of a guest, whatever exists. It takes no context: stopping half-way would
// be worse than waiting.
func (a *Guests[G]) Destroy(id fleet.GuestID) error {
	g, err := a.Find(id)
	if err != nil {
		return err
	}
	if g == *new(G) {
		return a.Wipe(id)
	}
	g.watched().stop()
	if err := a.Kill(g); err != nil {
		return err
	}
	return g.awaitEnd()
}

// Stop ends a guest at once and removes all of it, after the fault point, and forgets how it ended.
// A missing guest is not an error. After an error call Stop again.
func (a *Guests[G]) Stop(ctx context.Context, id fleet.GuestID, point string) error {
	if id.Check() != nil {
		return nil // no such guest can ever have been here
	}
	release, err := a.Lock(ctx, id)
	if err == nil {
		defer release()
		err = fault.Point(point)
	}
	if err == nil {
		err = a.Destroy(id)
	}
	if err != nil {
		return fmt.Errorf("stop guest %s: %w", id, err)
	}
	a.forgetEnd(id)
	return nil
}

// forgetEnd keeps how a guest ended by itself for people only.
func (a *Guests[G]) forgetEnd(id fleet.GuestID) {
	a.Kept.Told(id)
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.ends, id)
}
