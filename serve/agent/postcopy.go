package agent

import (
	"context"
	"fmt"

	"pagurus/fleet"
	"pagurus/internal/pause"
)

// fetchRemaining waits for the memory of a guest that runs here already.
func (a *Agent) fetchRemaining(ctx context.Context, w *taskRun) (fleet.Report, error) {
	d, can := w.driver.(PostCopier)
	if !can {
		return fleet.Report{}, nil // all memory came before the switch
	}
	err := d.FetchRemaining(ctx, w.slot.guest)
	if err != nil {
		err = fmt.Errorf("fetching from %s the remaining memory of guest %s: %w", w.task.Order.Peer, w.slot.guest, err)
	}
	return fleet.Report{}, err
}

// pushing reports the progress of memory sent after the switch, until another task touches
// the guest. An agent that starts in the middle of it does not.
func (a *Agent) pushing(w *taskRun, p fleet.Progress) {
	d, can := w.driver.(PostCopier)
	if !can || w.task.Limits.Mode != fleet.PostCopy {
		a.setProgress(w, nil)
		return
	}
	last := &p
	a.setProgress(w, last)
	a.runs.Go(func() {
		// In any case the guest must not seem to move without end.
		defer func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			if w.slot.progress == last {
				w.slot.progress = nil
			}
		}()
		for {
			if pause.For(a.ctx, pollEvery/2) != nil || !a.newest(w) {
				return
			}
			p, err := d.Pushed(a.ctx, w.slot.guest)
			if err != nil {
				return
			}
			a.mu.Lock()
			if w.slot.progress == last {
				last = &p
				w.slot.progress = last
			}
			a.mu.Unlock()
		}
	})
}

// retire destroys the source's copy and, after post-copy, reports the final cost.
func (a *Agent) retire(ctx context.Context, w *taskRun) (fleet.Report, error) {
	var cost *fleet.Progress
	if d, can := w.driver.(PostCopier); can && w.task.Limits.Mode == fleet.PostCopy {
		if p, err := d.Pushed(ctx, w.slot.guest); err == nil { // fails on a repeated order, but the cost is already reported
			cost = &p
		}
	}
	r, err := a.destroy(ctx, w)
	r.Cost = cost
	return r, err
}
