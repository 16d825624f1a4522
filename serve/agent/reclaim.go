package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"pagurus/fleet"
	"pagurus/internal/pause"
)

// reclaimForOwner reclaims memory from guests, or suspends them, while the host's owner is
// there, as is wanted of them, and undoes that when they go. It only begins
// what is to be done, and of each guest only what nothing else would wait for.
func (a *Agent) reclaimForOwner(now time.Time) {
	there := false
	if o := a.Owner.Seen(); o != nil {
		there = o.Present
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for g, p := range a.present {
		s := a.slots[g]
		if _, can := a.Drivers[p.kind].(Reclaimer); !can || s == nil || s.progress != nil || s.staged != nil || s.last != nil && !s.last.over() {
			continue
		}
		held := s.standing[fleet.Watch]
		if held == nil || held.over() {
			continue
		}
		still := there && a.wanted != nil && slices.Contains(a.wanted.Suspended, g)
		if verb := s.reclaim.Next(p.facts.Run, there, still, now); verb != "" {
			t := held.task
			t.Order.Verb = verb
			a.beginLocked(s, &taskRun{task: t, silent: true})
		}
	}
}

// reclaimMemory has a guest drop its page cache and give back its free memory.
func (a *Agent) reclaimMemory(ctx context.Context, w *taskRun) (fleet.Report, error) {
	err := error(nil)
	has := fleet.Cache{}
	if w.link != nil {
		asks, cancel := context.WithTimeout(ctx, cacheLimit)
		has, err = a.guestAgentOf(w.slot, w.link).Cache(asks, fleet.Spare{Drop: true})
		cancel()
	}
	var reclaimed int64
	if err == nil {
		reclaimed, err = w.driver.(Reclaimer).ReclaimMemory(ctx, w.slot.guest, has.FreeBytes)
	}
	if err != nil && w.cancelled() {
		return fleet.Report{}, err
	}
	a.mu.Lock()
	y := &w.slot.reclaim
	y.Whole, y.ReclaimedAt = false, time.Now()
	before := y.Reclaimed
	if err == nil {
		y.Reclaimed = reclaimed
	}
	a.mu.Unlock()
	if err == nil && before == 0 && reclaimed > 0 { // log only the first; later the amount changes a little all the time
		a.Log.Info("memory reclaimed from guest while the host's owner is present", "guest", w.slot.guest, "bytes", reclaimed)
	}
	a.trouble("memory of guest "+string(w.slot.guest)+" for the host's owner", err)
	return fleet.Report{}, err
}

// returnMemory returns all of a guest's memory.
func (a *Agent) returnMemory(ctx context.Context, w *taskRun) (fleet.Report, error) {
	err := w.driver.(Reclaimer).ReturnMemory(ctx, w.slot.guest)
	if err == nil || !w.cancelled() {
		a.trouble("memory of guest "+string(w.slot.guest)+" for the host's owner", err)
	}
	if err == nil {
		a.mu.Lock()
		before := w.slot.reclaim.Reclaimed
		w.slot.reclaim.Whole, w.slot.reclaim.Reclaimed = true, 0
		a.mu.Unlock()
		if before > 0 {
			a.Log.Info("all memory returned to guest", "guest", w.slot.guest, "bytes", before)
		}
	}
	return fleet.Report{}, err
}

// suspend suspends a guest for the host's owner.
func (a *Agent) suspend(ctx context.Context, w *taskRun) (fleet.Report, error) {
	a.mu.Lock()
	w.slot.reclaim.Suspended, w.slot.reclaim.Since = true, time.Now() // before, so that a guest suspended by a failed call is resumed later
	a.mu.Unlock()
	err := w.driver.(Reclaimer).Suspend(ctx, w.slot.guest)
	a.noteRun(w.slot.guest, fleet.Suspended, err)
	a.trouble("suspending guest "+string(w.slot.guest)+" for the host's owner", err)
	if err == nil {
		a.Log.Info("guest suspended while the host's owner is present", "guest", w.slot.guest)
	}
	return fleet.Report{}, err
}

// pulse lets a suspended guest run for a moment.
func (a *Agent) pulse(ctx context.Context, w *taskRun) (fleet.Report, error) {
	if err := w.driver.Resume(ctx, w.slot.guest); err != nil {
		return fleet.Report{}, err
	}
	_ = pause.For(ctx, PulseLength)
	if ctx.Err() != nil {
		return fleet.Report{}, ctx.Err() // the next task finds it running
	}
	a.mu.Lock()
	w.slot.reclaim.Since = time.Now()
	a.mu.Unlock()
	return fleet.Report{}, w.driver.(Reclaimer).Suspend(ctx, w.slot.guest)
}

// resumeSuspended resumes a guest that is suspended for the host's owner, because the next
// task needs it running.
func (a *Agent) resumeSuspended(ctx context.Context, w *taskRun) error {
	a.mu.Lock()
	still := w.slot.reclaim.Suspended
	a.mu.Unlock()
	if !still {
		return nil
	}
	if err := w.driver.Resume(ctx, w.slot.guest); err != nil {
		return fmt.Errorf("resuming guest %s, suspended for the owner of %s: %w", w.slot.guest, a.Host, err)
	}
	a.noteResumed(w.slot)
	return nil
}

// noteResumed notes that a guest is no longer suspended for an owner.
func (a *Agent) noteResumed(s *guestSlot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s.reclaim.Suspended = false
}

// noteRun notes a guest's new run state before the next inspection.
func (a *Agent) noteRun(g fleet.GuestID, run fleet.RunState, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p, here := a.present[g]; here && err == nil {
		p.facts.Run = run
		a.present[g] = p
	}
}
