package host

import (
	"context"
	"sync"

	"pagurus/fleet"
)

// Locks allows one call at a time to make or destroy a guest. The zero value is ready for
// use.
type Locks struct {
	mu  sync.Mutex
	all map[fleet.GuestID]*lock
}

type lock struct {
	free  chan struct{} // holds one token
	users int
}

// Lock waits until no other call has the guest's lock. The lock is held until release.
func (t *Locks) Lock(ctx context.Context, id fleet.GuestID) (release func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w := t.enter(id)
	select {
	case <-w.free:
		return func() { w.free <- struct{}{}; t.leave(id, w) }, nil
	case <-ctx.Done():
		t.leave(id, w)
		return nil, ctx.Err()
	}
}

func (t *Locks) enter(id fleet.GuestID) *lock {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = map[fleet.GuestID]*lock{}
	}
	w, ok := t.all[id]
	if !ok {
		w = &lock{free: make(chan struct{}, 1)}
		w.free <- struct{}{}
		t.all[id] = w
	}
	w.users++
	return w
}

func (t *Locks) leave(id fleet.GuestID, w *lock) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.users--; w.users == 0 {
		delete(t.all, id)
	}
}
