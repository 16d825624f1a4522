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

// verb carries out one order. fleet has its time limit.
type verb func(*Agent, context.Context, *taskRun) (fleet.Report, error)

const (
	ownRunLimit = time.Minute // for the agent's own verbs, which only use processes on this host

	lastTracesLimit = 3 * time.Second // for a guest to report its ranks' traces; most take milliseconds

	shutdownLimit = 30 * time.Second // for a guest to flush its files to a slow file server
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
		fleet.Arm:      (*Agent).arm,
		fleet.Cut:      (*Agent).cut,
		fleet.Continue: (*Agent).resumeCut,
		fleet.Save:     (*Agent).save,
		fleet.Drop:     (*Agent).drop,
		fleet.Restore:  (*Agent).restore,
		letRunVerb:     (*Agent).letRun,
		settleVerb:     (*Agent).settleGuest,
		resume:         (*Agent).awaken,
		ReclaimMemory:  (*Agent).reclaimMemory,
		ReturnMemory:   (*Agent).returnMemory,
		SuspendGuest:   (*Agent).suspend,
		PulseGuest:     (*Agent).pulse,
	}
}

// ownLimit is the time limit of the agent's own verbs.
func ownLimit(v fleet.Verb) time.Duration {
	if own[v] {
		return ownRunLimit
	}
	return 0 // it stands until it is cancelled
}

// watchGuest stands until the guest ends by itself.
func (a *Agent) watchGuest(ctx context.Context, w *taskRun) (fleet.Report, error) {
	g := w.slot.guest
	var ended <-chan struct{}
	if w.link != nil {
		ended = w.link.Ended(g) // before the check, so that an end between the two is not missed
	}
	here, err := a.here(ctx, w)
	for err != nil && ctx.Err() == nil { // an unknown state is no reason to give up the guest
		_ = pause.For(ctx, pollEvery)
		here, err = a.here(ctx, w)
	}
	if ctx.Err() != nil {
		return fleet.Report{}, errSilent
	}
	if !here {
		return fleet.Report{Remains: a.remains(w)}, fmt.Errorf("holding guest %s on %s: %w%s", g, a.Host, ErrAbsent, a.lastWords(w))
	}
	a.classify(w)
	a.wake(w.slot, w.task)
	listening, deaf := context.WithCancel(ctx)
	defer deaf()
	a.runs.Go(func() { a.listenTo(listening, w) })
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
	// A task that touches the guest now may have ended it, and reports that itself.
	if err := a.undisturbed(ctx, w.slot); err != nil {
		return fleet.Report{}, errSilent
	}
	how := "ended by itself"
	if a.Lease != nil && a.Lease.Stopped(g) != "" {
		how = "was stopped"
	}
	return fleet.Report{Cause: fmt.Sprintf("guest %s %s on %s%s", g, how, a.Host, a.lastWords(w)), Remains: a.remains(w)}, nil
}

// gateLimit is how long a guest may be suspended after its copy before the switch order
// comes: a commit and a message take a few hundredths of it. guardEvery is how long such a
// guest may be suspended unseen, although its move waits for a mark.
const (
	gateLimit  = 5 * time.Second
	guardEvery = 200 * time.Millisecond
)

// guard keeps a guest from being suspended for long after its copy. QEMU suspends a guest when
// nothing is left to send, and the controller may be away. The copy is then cancelled, and a
// later switch fails for certain.
func (a *Agent) guard(w *taskRun) {
	a.runs.Go(func() {
		since := time.Time{}
		for a.ctx.Err() == nil && a.newest(w) {
			switch state, err := a.state(a.ctx, w); {
			case err != nil || state != fleet.Suspended:
				since = time.Time{}
			case since.IsZero():
				since = time.Now()
				a.tellSuspended(w.slot.guest)
			case time.Since(since) > gateLimit:
				a.Log.Warn("no order came after the copy; the guest runs on", "guest", w.slot.guest)
				a.wake(w.slot, w.task)
				return
			}
			_ = pause.For(a.ctx, guardEvery)
		}
	})
}

// tellSuspended tells the controller soon that a guest is suspended: its move may wait for a mark of its programs, which run no longer.
func (a *Agent) tellSuspended(g fleet.GuestID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p, known := a.present[g]; known {
		p.facts.Run = fleet.Suspended
		a.present[g], a.urgent = p, true
	}
}

// newest reports whether no other task has touched the guest since w.
func (a *Agent) newest(w *taskRun) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return w.slot.last == w
}

// wake resumes a suspended guest that no task touches. The driver refuses to resume a guest
// that has left with a migration.
func (a *Agent) wake(s *guestSlot, t fleet.Task) {
	t.Order.Verb = resume
	a.mu.Lock()
	if !s.cutNow() && (s.last == nil || s.last.over()) {
		a.beginLocked(s, &taskRun{task: t, silent: true})
	}
	a.mu.Unlock()
}

// patience: an agent that has just started may get watch for a guest before switch, and a
// guest that is suspended for its switch must not be resumed.
const patience = 500 * time.Millisecond

func (a *Agent) awaken(ctx context.Context, w *taskRun) (fleet.Report, error) {
	state, err := a.state(ctx, w)
	if err == nil && state == fleet.Suspended {
		_ = pause.For(ctx, patience)
		state, err = a.state(ctx, w)
	}
	a.mu.Lock()
	cut := w.slot.cutNow()
	a.mu.Unlock()
	if cut { // its guard lets it run
		return fleet.Report{}, nil
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

// undisturbed waits until no task touches the guest.
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

// here asks the driver whether the guest is on this host, in any state.
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

// stop shuts a guest down if it can, and destroys it in any case.
func (a *Agent) stop(ctx context.Context, w *taskRun) (fleet.Report, error) {
	a.clear(w.slot)
	var traces []fleet.Trace
	if err := a.abandonStaged(ctx, w); err != nil { // a suspended guest cannot shut down
		a.Log.Warn("the guest's checkpoint does not end by itself", "guest", w.slot.guest, "cause", err)
	}
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
	left := a.remains(w)
	r, err := a.destroy(ctx, w)
	r.Traces, r.Remains = traces, left
	return r, err
}

// lastTraces asks the guest for its ranks' traces before it ends. Without an answer the stop
// goes on.
func (a *Agent) lastTraces(ctx context.Context, w *taskRun) []fleet.Trace {
	if !w.task.Job.Spec.Trace {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lastTracesLimit)
	defer cancel()
	traces, err := a.guestAgentOf(w.slot, w.link).Trace(ctx, fleet.TraceQuery{})
	if err != nil {
		a.Log.Warn("the guest's traces are unknown", "guest", w.slot.guest, "cause", err)
	}
	return traces
}

// destroy removes the guest's copy on this host in any state.
func (a *Agent) destroy(ctx context.Context, w *taskRun) (fleet.Report, error) {
	a.clear(w.slot)
	a.hangUp(w.slot)
	a.setProgress(w, nil)
	var err error
	for try := 0; try < stopTries; try++ {
		if err = w.driver.Stop(ctx, w.slot.guest); err == nil {
			err = a.abandonStaged(ctx, w)
		}
		if err == nil {
			a.mu.Lock()
			delete(a.present, w.slot.guest) // so that sweep does not act on an old inspection
			delete(a.sliced, w.slot.guest)  // one that comes later begins with its usual slice
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
	if err := errors.Join(a.freshen(ctx, w), a.fetch(ctx, w)); err != nil {
		return fleet.Report{}, err
	}
	a.hangUp(w.slot)
	a.deliver(w) // the guest may have left by the same port before
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
	// No copy begins while a checkpoint is under way: what is left here of one is stale.
	if err := errors.Join(a.abandonStaged(ctx, w), a.resumeSuspended(ctx, w)); err != nil {
		return fleet.Report{}, err
	}
	a.setProgress(w, &fleet.Progress{})
	dropped := a.spareCopy(ctx, w)
	a.setDropped(w.slot, dropped)
	var last *fleet.Progress
	var rounds []fleet.Round
	err := w.driver.Copy(ctx, w.task, func(p fleet.Progress) {
		rounds = p.Begun(rounds)
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
	return fleet.Report{Cost: last, Rounds: rounds}, err
}

// switchOver suspends the guest and sends the rest. Then the guest belongs to the target, and
// standing tasks here end without a report.
func (a *Agent) switchOver(ctx context.Context, w *taskRun) (fleet.Report, error) {
	p, err := w.driver.Switch(ctx, w.task, func(away bool) { a.lead(w, away) })
	if err != nil {
		if errors.Is(err, ErrAbsent) { // before the switch, or after an earlier call handed it over
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

// activate resumes the guest here. The Wanted before the order has already directed its
// address here. Only if that failed is it tried again, after the guest runs.
func (a *Agent) activate(ctx context.Context, w *taskRun) (fleet.Report, error) {
	if err := w.driver.Resume(ctx, w.slot.guest); err != nil {
		err = fmt.Errorf("letting guest %s run on %s: %w", w.slot.guest, a.Host, err)
		if errors.Is(err, ErrAbsent) || w.task.Orphan && errors.Is(err, fleet.ErrNotWhole) {
			return a.broken(w), err
		}
		return fleet.Report{}, vague{err} // worth another try, however often
	}
	resumed := time.Now()
	if d, can := w.driver.(ResumeTimer); can {
		resumed = cmp.Or(d.RanAgain(w.slot.guest), resumed) // and then had what waited for it
	}
	a.mu.Lock()
	w.slot.resumed = resumed
	a.mu.Unlock()
	a.boundNew(w) // not before: that would add to the downtime, and takes less than a millisecond
	a.beginSettling(w)
	a.runs.Go(func() { a.classify(w) }) // state from the source may have brought another share; not waited for
	a.match(ctx)
	return fleet.Report{Resumed: resumed}, nil
}

// revert resumes the guest here after a switch that did not happen.
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
	return fleet.Report{}, vague{err} // worth another try; a promised failure would strand the guest
}

// lead forwards the guest's frames to its target while it is suspended. If that fails, TCP
// retransmits, which costs the job 200 ms.
func (a *Agent) lead(w *taskRun, away bool) {
	if !away {
		a.deliver(w)
		return
	}
	if err := a.Overlay.Forward(w.task.Job.Subnet, w.task.Guest.Index); err != nil {
		a.Log.Warn("frames that arrive during the downtime are lost", "guest", w.slot.guest, "cause", err)
	}
}

// deliver directs frames for a guest to its port here.
func (a *Agent) deliver(w *taskRun) {
	err := a.Overlay.Deliver(w.task.Job.Subnet, w.task.Guest.Index)
	a.trouble("delivering frames to guest "+string(w.slot.guest), err)
}

// beginSettling sets a resumed guest's clock, in a task of its own so that the order does
// not wait for it.
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
