package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"

	"pagurus/fleet"
	"pagurus/internal/fault"
)

// ErrClosed says that the driver was closed.
var ErrClosed = errors.New("the driver was closed")

// endsKept limits how many guests that ended by themselves are remembered.
const endsKept = 256

// Guests are the guests that a driver watches, and the remains of those that ended by
// themselves. The zero value is ready for use.
type Guests[G any] struct {
	Locks
	Watches sync.WaitGroup // what Close waits for
	Kept    Remains        // also for later drivers

	mu     sync.Mutex // guards the fields below
	closed bool
	here   map[fleet.GuestID]*G
	ends   map[fleet.GuestID]fleet.Remains
}

// Add adds a guest and runs watch until it returns. After an error it did neither.
func (a *Guests[G]) Add(id fleet.GuestID, g *G, watch func()) error {
	return a.Go(func() {
		if a.here == nil {
			a.here = map[fleet.GuestID]*G{}
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
func (a *Guests[G]) Find(id fleet.GuestID) (*G, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return a.here[id], ErrClosed
	}
	return a.here[id], nil
}

// All returns all guests.
func (a *Guests[G]) All() (map[fleet.GuestID]*G, error) {
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
func (a *Guests[G]) Close(release func(*G)) {
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

// Ending returns what is known of a guest that ended by itself; nil: it did not, or was
// stopped since.
func (a *Guests[G]) Ending(id fleet.GuestID) *fleet.Remains {
	a.mu.Lock()
	r, known := a.ends[id]
	a.mu.Unlock()
	if known {
		return &r
	}
	return a.Kept.Find(id)
}

// Claim locks the guest's ID and finds the guest if it lives here. If it does not, Claim
// destroys what is left of it.
func (a *Guests[G]) Claim(ctx context.Context, id fleet.GuestID, lives func(*G) bool, destroy func(fleet.GuestID) error) (release func(), _ *G, err error) {
	if err := id.Check(); err != nil {
		return nil, nil, err
	}
	if release, err = a.Lock(ctx, id); err != nil {
		return nil, nil, err
	}
	g, err := a.Find(id)
	if err == nil && g != nil && lives(g) {
		return release, g, nil
	}
	if err == nil {
		err = destroy(id)
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	return release, nil, nil
}

// Stop destroys a guest, after the fault point, and forgets how it ended.
func (a *Guests[G]) Stop(ctx context.Context, id fleet.GuestID, point string, destroy func(fleet.GuestID) error) error {
	if id.Check() != nil {
		return nil // no such guest can ever have been here
	}
	release, err := a.Lock(ctx, id)
	if err == nil {
		defer release()
		err = fault.Point(point)
	}
	if err == nil {
		err = destroy(id)
	}
	if err != nil {
		return fmt.Errorf("stop guest %s: %w", id, err)
	}
	a.Kept.Told(id)
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.ends, id)
	return nil
}
