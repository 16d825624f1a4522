package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"runtime/debug"
	"slices"
	"time"

	"pagurus/fleet"
	"pagurus/internal/fault"
	"pagurus/internal/pause"
)

// guestSlot is everything the agent keeps in memory for one guest on this host. At most one
// taskRun touches the guest at a time; standing tasks run beside it.
type guestSlot struct {
	guest      fleet.GuestID
	entry      journalEntry
	last       *taskRun                // the newest that touches the guest; it waits for the one before
	standing   map[fleet.Verb]*taskRun // watch, run or end, and settle
	guestAgent GuestAgent              // made at first use
	resumed    time.Time               // when it last resumed after a move
	progress   *fleet.Progress         // of the last copy, until another task touches the guest
	of         fleet.MigrationID       // the migration of progress
	reclaim    ReclaimState            // memory reclaimed for the host's owner
	slowed     int                     // percent, in the last copy; as far as this agent knows
	staged     *staged                 // its checkpoint under way; nil: none
	awaited    time.Time               // until then a mark of its programs is awaited, and told at once
	heard      *heardSaid              // what its programs said last; nil: nothing, or nobody listens
	listener   *taskRun                // that listens to them
	dropped    int64                   // bytes of page cache before the last copy; as far as this agent knows
}

// taskRun is one order that the agent is carrying out.
type taskRun struct {
	task   fleet.Task
	silent bool // started by the agent itself: no report
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when it is over
	said   bool          // under Agent.mu: its report is made, so the same order is a new one
	slot   *guestSlot
	driver Driver
	link   Linker // of driver; nil: its guests have no link
}

// Three of the agent's own verbs: settle tells a moved guest its new setup, resume lets a
// guest run that is suspended without reason, let-run one whose cut is void.
const (
	settleVerb fleet.Verb = "settle"
	letRunVerb fleet.Verb = "let-run"
	resume                = ResumeGuest
)

// guestName keeps a name from the wire from becoming a path.
var guestName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// own are the agent's own verbs, which no order may contain.
var own = map[fleet.Verb]bool{settleVerb: true, letRunVerb: true, resume: true, ReclaimMemory: true, ReturnMemory: true, SuspendGuest: true, PulseGuest: true}

// errSuperseded ends work that a newer order replaces. errSilent ends work without a report.
var (
	errSuperseded = errors.New("superseded by a newer order")
	errSilent     = errors.New("nothing to report")
)

// vague marks an error after which the order may have had an effect. It is reported as
// unknown.
type vague struct{ error }

func (v vague) Unwrap() error { return v.error }

// gone marks an error of a switch whose guest is no longer here.
type gone struct{ error }

func (g gone) Unwrap() error { return g.error }

func (w *taskRun) over() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// cancelled: a newer order came, or the agent ends. An expired time limit does not count.
func (w *taskRun) cancelled() bool { return w.ctx.Err() != nil }

// point is where a test may make the agent end, wait or fail.
func (w *taskRun) point(place string) error {
	if w.silent {
		return nil
	}
	return fault.Point("agent." + string(w.task.Order.Verb) + "." + place)
}

func stands(v fleet.Verb) bool {
	return v == fleet.Watch || v == fleet.Run || v == fleet.End || v == settleVerb
}

// place is a verb's key in guestSlot.standing. End shares Run's, because it continues Run's
// streams.
func place(v fleet.Verb) fleet.Verb {
	if v == fleet.End {
		return fleet.Run
	}
	return v
}

// acceptTask starts a task, or answers at once if the answer is known, or does nothing if
// the same order is under way.
func (a *Agent) acceptTask(t fleet.Task) {
	o := t.Order
	t = subject(t)
	if o.Host != a.Host {
		a.Log.Warn("ignored an order for another host", "order", o)
		return // no report: a host answers for itself only
	}
	if err := a.refuse(t); err != nil {
		a.Log.Warn("refused an order", "order", o, "cause", err)
		a.post(fleet.Report{Order: o, Outcome: fleet.Failed, Cause: plain(err.Error())})
		return
	}
	if o.Verb == fleet.Drop && o.Peer == "" { // it is about the vault here, and the guest may never have been
		a.dropKept(o)
		return
	}
	s, err := a.slotOf(t.Guest.ID)
	if err != nil {
		a.post(fleet.Report{Order: o, Outcome: fleet.Unknown, Cause: plain(err.Error())})
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.busyWith(o) {
		return
	}
	if r, ok := s.entry.Answer(o); ok {
		a.postLocked(r)
		return
	}
	if o.Born != 0 && o.Born < s.entry.Born {
		a.postLocked(fleet.Report{Order: o, Outcome: fleet.Failed, Cause: fmt.Sprintf(
			"the order is about an earlier job that was called %s, and host %s has seen a later one", t.Job.ID, a.Host)})
		return
	}
	if o.Born > s.entry.Born {
		s.entry = a.entryFor(s, o.Born) // written down with its generation
	}
	gen := generation(t)
	fresh := gen > s.entry.LastGen
	if gen < s.entry.LastGen {
		a.postLocked(fleet.Report{Order: o, Outcome: fleet.Failed, Seen: s.entry.LastGen, Cause: fmt.Sprintf(
			"the order is of generation %d of guest %s, host %s has seen %d", gen, s.guest, a.Host, s.entry.LastGen)})
		return
	}
	if _, can := a.Drivers[t.Guest.Kind]; !can {
		outcome := fleet.Unknown // an earlier agent may have begun it, and the guest may well run
		if fresh && slices.Contains(beginnings, o.Verb) {
			outcome = fleet.Failed
		}
		a.postLocked(fleet.Report{Order: o, Outcome: outcome, AtFault: outcome == fleet.Failed, Cause: fmt.Sprintf("host %s runs no guests of kind %q at present", a.Host, t.Guest.Kind)})
		return
	}
	if fresh {
		p := s.entry
		p.LastGen = gen
		if err := a.journal.Write(s.guest, p); err != nil {
			a.postLocked(fleet.Report{Order: o, Outcome: fleet.Unknown, Cause: plain(err.Error())})
			return
		}
		s.entry = p
	}
	a.beginLocked(s, &taskRun{task: t})
}

// entryFor is the entry of a guest for another job than the one that its entry is about: the store was
// put back, and gave the same number again. Nothing that was promised about the other holds.
func (a *Agent) entryFor(s *guestSlot, born int64) journalEntry {
	if s.entry.Born == 0 { // an earlier agent did not write it down
		p := s.entry
		p.Born = born
		return p
	}
	a.Log.Warn("a job has the number of an earlier one, of which nothing is kept", "guest", s.guest)
	return journalEntry{Born: born, Stale: true}
}

// freshen removes what is here of a guest of an earlier job with the same number.
func (a *Agent) freshen(ctx context.Context, w *taskRun) error {
	a.mu.Lock()
	p := w.slot.entry
	a.mu.Unlock()
	if !p.Stale {
		return nil
	}
	if _, err := a.destroy(ctx, w); err != nil {
		return fmt.Errorf("removing what an earlier job of the same number left: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p = w.slot.entry
	p.Stale = false
	if err := a.journal.Write(w.slot.guest, p); err != nil {
		return vague{err}
	}
	w.slot.entry = p
	return nil
}

// beginnings are orders that have no effect before a host has seen them.
var beginnings = []fleet.Verb{fleet.Start, fleet.Receive, fleet.Copy, fleet.Switch, fleet.Arm, fleet.Restore}

// refuse says why this agent can never carry out an order.
func (a *Agent) refuse(t fleet.Task) error {
	o := t.Order
	if _, ok := verbs()[o.Verb]; !ok || own[o.Verb] {
		return fmt.Errorf("the agent of %s speaks version %d of the protocol and does not know the order %q, so it is older than the controller: upgrade the agent", a.Host, fleet.Protocol(), o.Verb)
	}
	if !guestName.MatchString(string(t.Guest.ID)) {
		return fmt.Errorf("%q is not a valid guest name", t.Guest.ID)
	}
	if o.Verb == fleet.Drop {
		return o.Checkpoint.Check()
	}
	return nil
}

// subject fills in the guest of a task: a job's own orders are about guest 0.
func subject(t fleet.Task) fleet.Task {
	if t.Guest.ID == "" {
		t.Guest.ID = t.Order.Guest
	}
	if t.Guest.ID == "" && t.Job.ID != "" {
		t.Guest.ID = fleet.GuestID(t.Job.ID + "g0")
	}
	if t.Guest.Kind == "" {
		t.Guest.Kind = t.Job.Spec.Kind
	}
	return t
}

func generation(t fleet.Task) uint64 {
	if t.Order.Gen != 0 {
		return t.Order.Gen
	}
	return t.Guest.Gen
}

// slotOf gives the slot of a guest, with its entry in the order journal.
func (a *Agent) slotOf(g fleet.GuestID) (*guestSlot, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.slots[g]; s != nil {
		return s, nil
	}
	p, err := a.journal.Read(g)
	if err != nil {
		return nil, err
	}
	s := &guestSlot{guest: g, entry: p, standing: map[fleet.Verb]*taskRun{}}
	a.slots[g] = s
	return s, nil
}

func (s *guestSlot) busyWith(o fleet.Order) bool {
	for _, w := range []*taskRun{s.last, s.standing[place(o.Verb)]} {
		if w != nil && w.task.Order == o && !w.said && !w.cancelled() {
			return true
		}
	}
	return false
}

// idle reports whether no task runs for the guest.
func (s *guestSlot) idle() bool {
	for _, w := range s.standing {
		if !w.over() {
			return false
		}
	}
	return s.last == nil || s.last.over()
}

// beginLocked starts w and cancels the task that it replaces. w waits until that has ended;
// a Switch cannot be cancelled and runs to its end.
func (a *Agent) beginLocked(s *guestSlot, w *taskRun) {
	w.slot, w.done = s, make(chan struct{})
	w.driver = a.Drivers[w.task.Guest.Kind]
	w.link, _ = w.driver.(Linker)
	w.ctx, w.cancel = context.WithCancelCause(a.ctx)
	verb := w.task.Order.Verb
	var prior *taskRun
	if stands(verb) {
		prior, s.standing[place(verb)] = s.standing[place(verb)], w
	} else {
		prior, s.last = s.last, w
	}
	if prior != nil {
		prior.cancel(errSuperseded)
	}
	a.runs.Go(func() {
		defer close(w.done)
		defer w.cancel(nil)
		if prior != nil {
			<-prior.done
		}
		if w.cancelled() {
			return
		}
		r, err := a.carryOut(w)
		a.conclude(w, r, err)
	})
}

// carryOut does the work. A panic is a bug in one order's code and must not end the agent of
// all guests.
func (a *Agent) carryOut(w *taskRun) (r fleet.Report, err error) {
	verb := w.task.Order.Verb
	defer func() {
		if p := recover(); p != nil {
			a.Log.Error("panic", "order", w.task.Order, "panic", p, "stack", string(debug.Stack()))
			err = vague{fmt.Errorf("the agent has a bug: %v", p)}
		}
		r.Order = w.task.Order
	}()
	if err := w.point("before"); err != nil {
		return r, err
	}
	v, limit := verbs()[verb], verb.Limit(w.task.Limits.Mode, w.task.Guest.Need.MemoryBytes)
	if limit == 0 {
		limit = ownLimit(verb)
	}
	ctx, cancel := w.ctx, context.CancelFunc(func() {})
	if verb == fleet.Switch {
		ctx = context.WithoutCancel(ctx) // half a switch is worse than a late one
	}
	if limit > 0 {
		ctx, cancel = context.WithTimeout(ctx, limit)
	}
	defer cancel()
	begun := time.Now()
	r, err = v(a, ctx, w)
	if wrong := w.point("after"); wrong != nil {
		err = vague{wrong}
	}
	if !w.silent && !errors.Is(err, errSilent) {
		log := a.Log.With("verb", verb, "guest", w.slot.guest, "took", time.Since(begun).Round(time.Millisecond))
		if err != nil {
			log.Warn("order not carried out", "cause", err)
		} else {
			log.Info("order carried out")
		}
	}
	return r, err
}

// conclude records the outcome in the order journal and reports it.
func (a *Agent) conclude(w *taskRun, r fleet.Report, err error) {
	if w.silent && r.Order.Verb == fleet.Stop {
		a.trouble(removing+string(w.slot.guest), err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	w.said = true
	if w.silent || errors.Is(err, errSilent) || (err != nil && w.cancelled() && r.Order.Verb != fleet.Switch) {
		return
	}
	r.Outcome = fleet.Done
	if err != nil {
		r.Outcome, r.Cause = fleet.Failed, plain(err.Error())
	}
	switch {
	case errors.As(err, new(gone)):
		r.Outcome = fleet.Gone
	case errors.Is(err, ErrUnsure), errors.As(err, new(vague)):
		r.Outcome = fleet.Unknown
	}
	if r.Outcome != fleet.Unknown && remembered(r) {
		p := w.slot.entry.With(r, generation(w.task))
		if err := a.journal.Write(w.slot.guest, p); err == nil {
			w.slot.entry = p
		} else if r.Outcome == fleet.Failed {
			r.Outcome, r.Cause = fleet.Unknown, r.Cause+"; "+plain(err.Error()) // a promise that is not written down does not hold
		}
		if w.point("recorded") != nil {
			return // as if the report got lost
		}
	}
	a.postLocked(r)
}

// remembered: a done Stop is not recorded but repeated, since the same order may mean a
// guest that was started after it.
func remembered(r fleet.Report) bool { return r.Outcome == fleet.Failed || r.Order.Verb != fleet.Stop }

// dismiss cancels the guest's standing tasks and returns them.
func (a *Agent) dismiss(s *guestSlot) []*taskRun {
	a.mu.Lock()
	defer a.mu.Unlock()
	var gone []*taskRun
	for _, w := range s.standing {
		w.cancel(errSuperseded)
		gone = append(gone, w)
	}
	return gone
}

// clear cancels the guest's standing tasks and waits for their end.
func (a *Agent) clear(s *guestSlot) {
	for _, w := range a.dismiss(s) {
		<-w.done
	}
}

// guestAgentOf gives the client of the guest's agent. All tasks share it, since the link
// bears only one.
func (a *Agent) guestAgentOf(s *guestSlot, l Linker) GuestAgent {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.guestAgent == nil {
		s.guestAgent = a.GuestAgent(s.guest, rested{l, a, s})
	}
	return s.guestAgent
}

// rest is how long the agent does not contact a guest that has just moved. The guest first
// has to catch up with its job. It is short, since output and the job's end wait for it, and
// a guest that moves often must be reachable between two moves.
const rest = 50 * time.Millisecond

// rested opens the link after the rest.
type rested struct {
	Linker
	agent *Agent
	slot  *guestSlot
}

// Link opens the link.
func (r rested) Link(ctx context.Context, g fleet.GuestID) (io.ReadWriteCloser, error) {
	r.agent.mu.Lock()
	left := rest - time.Since(r.slot.resumed)
	r.agent.mu.Unlock()
	if left > 0 {
		_ = pause.For(ctx, left)
	}
	return r.Linker.Link(ctx, g)
}

// hangUp closes the link to the guest.
func (a *Agent) hangUp(s *guestSlot) {
	a.mu.Lock()
	in := s.guestAgent
	s.guestAgent = nil
	a.mu.Unlock()
	if c, ok := in.(io.Closer); ok {
		_ = c.Close() // the guest is gone, so nothing is lost
	}
}
