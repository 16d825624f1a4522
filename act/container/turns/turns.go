// Package turns lets one call at a time make or destroy a guest. It does not know
// what a call does. Its tests run goroutines.
package turns

import (
	"context"
	"sync"

	"pagurus/fleet"
)

// Turns is who makes or destroys which guest. The zero value is ready.
type Turns struct {
	mu  sync.Mutex
	all map[fleet.GuestID]*turn
}

type turn struct {
	free  chan struct{} // holds one token
	users int
}

// Take waits for a guest's turn, which lasts until release.
func (t *Turns) Take(ctx context.Context, id fleet.GuestID) (release func(), err error) {
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

func (t *Turns) enter(id fleet.GuestID) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = map[fleet.GuestID]*turn{}
	}
	w, ok := t.all[id]
	if !ok {
		w = &turn{free: make(chan struct{}, 1)}
		w.free <- struct{}{}
		t.all[id] = w
	}
	w.users++
	return w
}

func (t *Turns) leave(id fleet.GuestID, w *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.users--; w.users == 0 {
		delete(t.all, id)
	}
}
