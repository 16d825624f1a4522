package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"pagurus/fleet"
	"pagurus/internal/pause"
)

// verb is how one order is carried out. How long that may take is said in fleet.
type verb func(*Agent, context.Context, *taskRun) (fleet.Report, error)

const (
	ownRunLimit = time.Minute // of the agent's own ideas, which only talk to a process on this host

	lastTracesLimit = 3 * time.Second // for a guest to say what its ranks have done; most take milliseconds

	shutdownLimit = 30 * time.Second // for a guest to flush its files, over a file server that is slow
	stopTries     = 3
	stopPause     = 300 * time.Millisecond
	pollEvery     = time.Second // for guests without a link
)

// verbs is the table of all verbs. It is no variable, because settle, in it, is begun by
// others in it.
func verbs() map[fleet.Verb]verb {
	return map[fleet.Verb]verb{
		fleet.Start:    (*Agent).start,
		fleet.Watch:    (*Agent).watchGuest,
		fleet.Stop:     (*Agent).stop,
		fleet.Run:      (*Agent).run,
		fleet.End:      (*Agent).end,
		fleet.Receive:  (*Agent).receive,
		fleet.Copy:     (*Agent).copy,
		fleet.Switch:   (*Agent).switchOver,
		fleet.Activate: (*Agent).activate,
		fleet.Fetch:    (*Agent).fetchRemaining,
		fleet.Retire:   (*Agent).retire,
		fleet.Revert:   (*Agent).revert,
		fleet.Discard:  (*Agent).destroy,
		settleVerb:     (*Agent).settleGuest,
		resume:         (*Agent).awaken,
		ReclaimMemory:  (*Agent).reclaimMemory,
		ReturnMemory:   (*Agent).returnMemory,
		SuspendGuest:   (*Agent).suspend,
		PulseGuest:     (*Agent).pulse,
	}
}

// ownLimit is how long the agent's own verbs may take.
func ownLimit(v fleet.Verb) time.Duration {
	if own[v] {
		return ownRunLimit
	}
	return 0 // it stands until it is cancelled
}

// watchGuest stands until the guest ended by itself.
func (a *Agent) watchGuest(ctx context.Context, w *taskRun) (fleet.Report, error) {
	g := w.slot.guest
	var ended <-chan struct{}
	if w.link != nil {
		ended = w.link.Ended(g) // before the look, or an end between the two is missed
	}
	here, err := a.here(ctx, w)
	for err != nil && ctx.Err() == nil { // not knowing is no reason to give the guest up
		_ = pause.For(ctx, pollEvery)
		here, err = a.here(ctx, w)
	}
	if ctx.Err() != nil {
		return fleet.Report{}, errSilent
	}
	if !here {
		return fleet.Report{}, fmt.Errorf("holding guest %s on %s: %w%s", g, a.Host, ErrAbsent, a.lastWords(w))
	}
	a.classify(w)
	a.wake(w.slot, w.task)
	if ended != nil {
		select {
		case <-ctx.Done():
			return fleet.Report{}, errSilent
		case <-ended:
		}
	}
	for ended == nil && here {
		if pause.For(ctx, pollEvery) != nil {
			return fleet.Report{}, errSilent
		}
		if now, err := a.here(ctx, w); err == nil {
			here = now
		}
	}
	// Whatever touches the guest now may be what ended it here, and says so.
	if err := a.undisturbed(ctx, w.slot); err != nil {
		return fleet.Report{}, errSilent
	}
	return fleet.Report{Cause: fmt.Sprintf("guest %s ended by itself on %s%s", g, a.Host, a.lastWords(w))}, nil
}

// gateLimit is how long a guest may be suspended after its copy before the
// order to switch comes; a commit and a message take a few hundredths of it.
const gateLimit = 5 * time.Second

// guard ensures that a guest whose copy is done is not suspended for
// long: where QEMU found nothing more to send it has paused the guest, and the
// controller that should say what is next may be away. The copy is cancelled
// then, and a switch that comes later fails for certain.
func (a *Agent) guard(w *taskRun) {
	a.runs.Go(func() {
		paused := time.Time{}
		for a.ctx.Err() == nil && a.newest(w) {
			switch state, err := a.state(a.ctx, w); {
			case err != nil || state != fleet.Suspended:
				paused = time.Time{}
			case paused.IsZero():
				paused = time.Now()
			case time.Since(paused) > gateLimit:
				a.Log.Warn("nobody says what to do after a copy; the guest runs on", "guest", w.slot.guest)
				a.wake(w.slot, w.task)
				return
			}
			_ = pause.For(a.ctx, pollEvery)
		}
	})
}

// newest reports whether nothing else has touched the guest since w.
func (a *Agent) newest(w *taskRun) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return w.slot.last == w
}

// wake lets a suspended guest run while nothing is being done with it.
// What has left with a migration stays as it is, its driver refuses.
func (a *Agent) wake(s *guestSlot, t fleet.Task) {
	t.Order.Verb = resume
	a.mu.Lock()
	if s.last == nil || s.last.over() {
		a.beginLocked(s, &taskRun{task: t, silent: true})
	}
	a.mu.Unlock()
}

// patience: an agent that has just started may be told to hold a guest before it
// is told to switch it, and a guest that stands ready for that is not to be woken.
const patience = 500 * time.Millisecond

func (a *Agent) awaken(ctx context.Context, w *taskRun) (fleet.Report, error) {
	state, err := a.state(ctx, w)
	if err == nil && state == fleet.Suspended {
		_ = pause.For(ctx, patience)
		state, err = a.state(ctx, w)
	}
	if err != nil || state != fleet.Suspended || ctx.Err() != nil {
		return fleet.Report{}, err
	}
	r, err := a.revert(ctx, w)
	if err == nil {
		a.noteResumed(w.slot)
	}
	return r, err
}

// undisturbed waits until no work touches the guest.
func (a *Agent) undisturbed(ctx context.Context, s *guestSlot) error {
	for {
		a.mu.Lock()
		last := s.last
		a.mu.Unlock()
		if last == nil || last.over() {
			return ctx.Err()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-last.done:
		}
	}
}

// here asks the driver whether the guest is on this host in any state.
func (a *Agent) here(ctx context.Context, w *taskRun) (bool, error) {
	state, err := a.state(ctx, w)
	return state != fleet.Absent, err
}

func (a *Agent) state(ctx context.Context, w *taskRun) (fleet.RunState, error) {
	ctx, cancel := context.WithTimeout(ctx, ownRunLimit)
	defer cancel()
	all, err := w.driver.Inspect(ctx)
	if err != nil {
		return fleet.Absent, fmt.Errorf("looking for guest %s: %w", w.slot.guest, err)
	}
	if f, ok := all[w.slot.guest]; ok {
		return f.Run, nil
	}
	return fleet.Absent, nil
}

// stop ends a guest in good order if it can, and in any case.
func (a *Agent) stop(ctx context.Context, w *taskRun) (fleet.Report, error) {
	a.clear(w.slot)
	var traces []fleet.Trace
	if err := a.resumeSuspended(ctx, w); err != nil {
		a.Log.Warn("guest cannot shut down by itself", "guest", w.slot.guest, "cause", err)
	}
	if state, err := a.state(ctx, w); err == nil && state == fleet.Running && w.link != nil && !w.silent {
		traces = a.lastTraces(ctx, w)
		ctx, cancel := context.WithTimeout(ctx, shutdownLimit)
		err := a.guestAgentOf(w.slot, w.link).Shutdown(ctx)
		cancel()
		if err != nil {
			a.Log.Warn("guest did not shut down by itself", "guest", w.slot.guest, "cause", err)
		}
	}
	r, err := a.destroy(ctx, w)
	r.Traces = traces
	return r, err
}

// lastTraces asks what the guest's ranks have done, as long as there is a
// guest. Without an answer it stops all the same.
func (a *Agent) lastTraces(ctx context.Context, w *taskRun) []fleet.Trace {
	if !w.task.Job.Spec.Trace {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lastTracesLimit)
	defer cancel()
	traces, err := a.guestAgentOf(w.slot, w.link).Trace(ctx, fleet.TraceQuery{})
	if err != nil {
		a.Log.Warn("what the guest's ranks have done is not known", "guest", w.slot.guest, "cause", err)
	}
	return traces
}

// destroy removes the guest's copy on this host, whatever its state.
func (a *Agent) destroy(ctx context.Context, w *taskRun) (fleet.Report, error) {
	a.clear(w.slot)
	a.hangUp(w.slot)
	a.setProgress(w, nil)
	var err error
	for try := 0; try < stopTries; try++ {
		if err = w.driver.Stop(ctx, w.slot.guest); err == nil {
			a.mu.Lock()
			delete(a.present, w.slot.guest) // not to be swept because of an old look
			a.mu.Unlock()
			a.layouts.Forget(w.slot.guest)
			return fleet.Report{}, nil
		}
		_ = pause.For(ctx, stopPause)
	}
	return fleet.Report{}, vague{err}
}

// receive makes the empty guest that takes in state.
func (a *Agent) receive(ctx context.Context, w *taskRun) (fleet.Report, error) {
	if err := a.fetch(ctx, w); err != nil {
		return fleet.Report{}, err
	}
	a.hangUp(w.slot)
	a.deliver(w) // it may have left by the same port before
	listen, err := w.driver.Receive(ctx, a.lay(w.task))
	if err != nil {
		return fleet.Report{}, err
	}
	a.classify(w)
	return fleet.Report{Listen: listen}, nil
}

// copy sends the guest's memory while it runs.
func (a *Agent) copy(ctx context.Context, w *taskRun) (fleet.Report, error) {
	if found := a.obstacles(ctx, w.slot.guest, w.driver); len(found) > 0 {
		return fleet.Report{}, fmt.Errorf("copy guest %s: it cannot be moved: %s", w.slot.guest, strings.Join(found, "; "))
	}
	if err := a.resumeSuspended(ctx, w); err != nil {
		return fleet.Report{}, err
	}
	a.setProgress(w, &fleet.Progress{})
	dropped := a.dropPageCache(ctx, w)
	a.setDropped(w.slot, dropped)
	var last *fleet.Progress
	var passes []fleet.Pass
	err := w.driver.Copy(ctx, w.task, func(p fleet.Progress) {
		passes = p.Begun(passes)
		p.DroppedBytes = dropped
		p.SlowedPercent = a.slowed(w.slot, p.SlowedPercent)
		last = &p
		a.setProgress(w, &p)
	})
	if err != nil {
		a.setProgress(w, nil)
	} else {
		a.guard(w)
	}
	return fleet.Report{Cost: last, Passes: passes}, err
}

// switchOver pauses the guest and sends the rest. Once it is done the guest
// belongs to the target: what stands here ends without a word.
func (a *Agent) switchOver(ctx context.Context, w *taskRun) (fleet.Report, error) {
	p, err := w.driver.Switch(ctx, w.task, func(away bool) { a.lead(w, away) })
	if err != nil {
		if errors.Is(err, ErrAbsent) { // before the switch, or after an earlier call has handed it over
			err = gone{fmt.Errorf("%w%s", err, a.lastWords(w))}
		}
		return fleet.Report{}, err
	}
	a.dismiss(w.slot) // not waited for: the guest is suspended until this is reported
	a.mu.Lock()
	p.DroppedBytes, p.SlowedPercent = w.slot.dropped, w.slot.slowed
	a.mu.Unlock()
	a.pushing(w, p)
	return fleet.Report{Cost: &p}, nil
}

// activate lets the guest run here. The network was made to carry its address
// by the Wanted that came before the order; only if that went wrong it is
// tried again now, after the guest runs.
func (a *Agent) activate(ctx context.Context, w *taskRun) (fleet.Report, error) {
	if err := w.driver.Resume(ctx, w.slot.guest); err != nil {
		err = fmt.Errorf("letting guest %s run on %s: %w", w.slot.guest, a.Host, err)
		if errors.Is(err, ErrAbsent) || w.task.Orphan && errors.Is(err, fleet.ErrNotWhole) {
			return fleet.Report{}, err
		}
		return fleet.Report{}, vague{err} // worth another try, however often
	}
	resumed := time.Now()
	if d, can := w.driver.(interface{ RanAgain(fleet.GuestID) time.Time }); can {
		resumed = cmp.Or(d.RanAgain(w.slot.guest), resumed) // and then had what waited for it
	}
	a.mu.Lock()
	w.slot.resumed = resumed
	a.mu.Unlock()
	a.beginSettling(w)
	a.runs.Go(func() { a.classify(w) }) // what came with the guest may have brought its own; not waited for
	a.match(ctx)
	return fleet.Report{Resumed: resumed}, nil
}

// revert lets the guest run on here after a switch that did not happen.
func (a *Agent) revert(ctx context.Context, w *taskRun) (fleet.Report, error) {
	a.setProgress(w, nil)
	err := w.driver.Resume(ctx, w.slot.guest)
	if err == nil {
		a.deliver(w)
		a.beginSettling(w)
		return fleet.Report{}, nil
	}
	err = fmt.Errorf("letting guest %s run on again on %s: %w", w.slot.guest, a.Host, err)
	if errors.Is(err, ErrAbsent) {
		return fleet.Report{}, err
	}
	return fleet.Report{}, vague{err} // worth another try; a promise that it failed would strand the guest
}

// lead has what comes for a guest go to its target while it is paused; if it
// cannot, TCP will mend it, which costs the job a fifth of a second.
func (a *Agent) lead(w *taskRun, away bool) {
	if !away {
		a.deliver(w)
		return
	}
	if err := a.Overlay.Forward(w.task.Job.Subnet, w.task.Guest.Index); err != nil {
		a.Log.Warn("frames that arrive during the downtime are lost", "guest", w.slot.guest, "cause", err)
	}
}

// deliver sees to it that what comes for a guest here goes to its port here.
func (a *Agent) deliver(w *taskRun) {
	err := a.Overlay.Deliver(w.task.Job.Subnet, w.task.Guest.Index)
	a.trouble("delivering frames to guest "+string(w.slot.guest), err)
}

// beginSettling tells a guest that was suspended what time it is, beside the
// order, which nothing shall keep waiting.
func (a *Agent) beginSettling(w *taskRun) {
	if w.link == nil {
		return
	}
	t := w.task
	t.Order.Verb = settleVerb
	a.mu.Lock()
	defer a.mu.Unlock()
	a.beginLocked(w.slot, &taskRun{task: t, silent: true})
}

func (a *Agent) settleGuest(ctx context.Context, w *taskRun) (fleet.Report, error) {
	err := a.guestAgentOf(w.slot, w.link).Setup(ctx, setupOf(w.task, time.Now()))
	if err != nil && ctx.Err() == nil {
		a.Log.Warn("the guest's clock was not set after its move", "guest", w.slot.guest, "cause", err)
	}
	return fleet.Report{}, err
}
