package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"pagurus/fleet"
)

// Yielder is a driver whose guests can do without some of their memory, or
// altogether stand still, while the owner of the host is there.
type Yielder interface {
	// Lend has a guest of whose memory so much holds nothing give it back, but for
	// a reserve, and says how much the host has of it then. It holds until
	// Reclaim, also after a move. After an error the guest has what it had.
	Lend(ctx context.Context, g fleet.GuestID, freeBytes int64) (int64, error)
	// Reclaim ends Lend; one that did not lend is no error. After an error call
	// again.
	Reclaim(context.Context, fleet.GuestID) error
	// Pause has a running guest stand still until Resume, its memory for the
	// host to take. A guest that is being moved is refused. After an error it may
	// stand still or not: call again, or Resume.
	Pause(context.Context, fleet.GuestID) error
}

// giveWay has guests lend memory and stand still while the host's owner is
// there, as is wanted of them, and undoes that when they go. It only begins
// what is to be done, and of each guest only what nothing else would wait for.
func (a *Agent) giveWay(now time.Time) {
	there := false
	if o := a.Owner.Seen(); o != nil {
		there = o.Present
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for g, p := range a.present {
		s := a.seats[g]
		if _, can := a.Drivers[p.kind].(Yielder); !can || s == nil || s.progress != nil || s.last != nil && !s.last.over() {
			continue
		}
		held := s.standing[fleet.Hold]
		if held == nil || held.over() {
			continue
		}
		still := there && a.wanted != nil && slices.Contains(a.wanted.Still, g)
		if verb := s.yields.Next(p.facts.Run, there, still, now); verb != "" {
			t := held.task
			t.Order.Verb = verb
			a.beginLocked(s, &work{task: t, silent: true})
		}
	}
}

// lend has a guest drop what it could read again and give back what is free.
func (a *Agent) lend(ctx context.Context, w *work) (fleet.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, cacheLimit)
	defer cancel()
	err := error(nil)
	has := fleet.Cache{}
	if w.link != nil {
		has, err = a.inside(w.seat, w.link).Cache(ctx, true)
	}
	var lent int64
	if err == nil {
		lent, err = w.driver.(Yielder).Lend(ctx, w.seat.guest, has.FreeBytes)
	}
	if err != nil && w.calledOff() {
		return fleet.Report{}, err
	}
	a.mu.Lock()
	y := &w.seat.yields
	y.Whole, y.LentAt = false, time.Now()
	before := y.Lent
	if err == nil {
		y.Lent = lent
	}
	a.mu.Unlock()
	if err == nil && before == 0 && lent > 0 { // from then on it is a little more or less all the time
		a.Log.Info("a guest gives memory back while the host's owner is there", "guest", w.seat.guest, "bytes", lent)
	}
	a.trouble("memory of guest "+string(w.seat.guest)+" for the host's owner", err)
	return fleet.Report{}, err
}

// reclaim gives a guest all of its memory again.
func (a *Agent) reclaim(ctx context.Context, w *work) (fleet.Report, error) {
	err := w.driver.(Yielder).Reclaim(ctx, w.seat.guest)
	if err == nil || !w.calledOff() {
		a.trouble("memory of guest "+string(w.seat.guest)+" for the host's owner", err)
	}
	if err == nil {
		a.mu.Lock()
		before := w.seat.yields.Lent
		w.seat.yields.Whole, w.seat.yields.Lent = true, 0
		a.mu.Unlock()
		if before > 0 {
			a.Log.Info("a guest has all of its memory again", "guest", w.seat.guest, "bytes", before)
		}
	}
	return fleet.Report{}, err
}

// pause has a guest stand still.
func (a *Agent) pause(ctx context.Context, w *work) (fleet.Report, error) {
	a.mu.Lock()
	w.seat.yields.Still, w.seat.yields.Since = true, time.Now() // before: what stands still and is not known to would be left so
	a.mu.Unlock()
	err := w.driver.(Yielder).Pause(ctx, w.seat.guest)
	a.noteRun(w.seat.guest, fleet.Paused, err)
	a.Log.Info("a guest stands still while the host's owner is there", "guest", w.seat.guest, "cause", err)
	return fleet.Report{}, err
}

// breathe lets a guest that stands still run for a moment.
func (a *Agent) breathe(ctx context.Context, w *work) (fleet.Report, error) {
	if err := w.driver.Resume(ctx, w.seat.guest); err != nil {
		return fleet.Report{}, err
	}
	wait(ctx, Breath)
	if ctx.Err() != nil {
		return fleet.Report{}, ctx.Err() // what comes next finds it running
	}
	a.mu.Lock()
	w.seat.yields.Since = time.Now()
	a.mu.Unlock()
	return fleet.Report{}, w.driver.(Yielder).Pause(ctx, w.seat.guest)
}

// rouse lets a guest run that stands still for the host's owner: what is to be
// done with it now needs it awake.
func (a *Agent) rouse(ctx context.Context, w *work) error {
	a.mu.Lock()
	still := w.seat.yields.Still
	a.mu.Unlock()
	if !still {
		return nil
	}
	if err := w.driver.Resume(ctx, w.seat.guest); err != nil {
		return fmt.Errorf("letting guest %s run that stood still for the owner of %s: %w", w.seat.guest, a.Host, err)
	}
	a.roused(w.seat)
	return nil
}

// roused notes that a guest does not stand still for an owner any more.
func (a *Agent) roused(s *seat) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s.yields.Still = false
}

// noteRun notes what a guest does now, before the next look.
func (a *Agent) noteRun(g fleet.GuestID, run fleet.RunState, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p, here := a.present[g]; here && err == nil {
		p.facts.Run = run
		a.present[g] = p
	}
}
