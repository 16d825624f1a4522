package agent

import (
	"context"
	"fmt"

	"pagurus/fleet"
)

// Gatherer is a driver that can run a guest before its memory has arrived: by
// post-copy a Switch is done when the target has all but memory, and Resume
// there lets it run. The source must be kept until Gather is done.
type Gatherer interface {
	// Gather waits at the target until all memory is there. A guest that came
	// otherwise has it. After an error that wraps ErrUnsure call again; after any
	// other some of it never comes, and the guest is lost.
	Gather(context.Context, fleet.GuestID) error
	// Pushed says at the source what has been sent so far, and what the Switch
	// cost.
	Pushed(context.Context, fleet.GuestID) (fleet.Progress, error)
}

// gather waits for the memory of a guest that runs here already.
func (a *Agent) gather(ctx context.Context, w *work) (fleet.Report, error) {
	d, can := w.driver.(Gatherer)
	if !can {
		return fleet.Report{}, nil // it came whole
	}
	err := d.Gather(ctx, w.seat.guest)
	if err != nil {
		err = fmt.Errorf("waiting for what %s has of guest %s: %w", w.task.Order.Peer, w.seat.guest, err)
	}
	return fleet.Report{}, err
}

// pushing tells how far the memory is that goes over after the guest, as long as
// nothing else is done here. An agent that starts in the middle of it does not.
func (a *Agent) pushing(w *work, p fleet.Progress) {
	d, can := w.driver.(Gatherer)
	if !can || w.task.Limits.Mode != fleet.PostCopy {
		a.setProgress(w, nil)
		return
	}
	last := &p
	a.setProgress(w, last)
	a.works.Go(func() {
		// Whatever ends it, the guest does not go on moving for ever.
		defer func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			if w.seat.progress == last {
				w.seat.progress = nil
			}
		}()
		for {
			if wait(a.ctx, pollEvery/2); a.ctx.Err() != nil || !a.newest(w) {
				return
			}
			p, err := d.Pushed(a.ctx, w.seat.guest)
			if err != nil {
				return
			}
			a.mu.Lock()
			if w.seat.progress == last {
				last = &p
				w.seat.progress = last
			}
			a.mu.Unlock()
		}
	})
}

// retire destroys what the guest left behind, and says what it cost in the end
// if memory went over after it.
func (a *Agent) retire(ctx context.Context, w *work) (fleet.Report, error) {
	var cost *fleet.Progress
	if d, can := w.driver.(Gatherer); can && w.task.Limits.Mode == fleet.PostCopy {
		if p, err := d.Pushed(ctx, w.seat.guest); err == nil { // asked again it is gone, and has said it
			cost = &p
		}
	}
	r, err := a.destroy(ctx, w)
	r.Cost = cost
	return r, err
}
