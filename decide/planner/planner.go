// Package planner is the whole of the controller's thinking. Step is a pure
// function from what is known and what just happened to what must change and
// who must be told; what is outstanding follows from the states alone, so a
// controller that died in between just sends it again.
//
// It must not know the clock, the store or any connection: the live controller
// and the simulator differ only in where events come from and where orders go.
// Its tests run against a small world that answers orders by itself, in turn
// well, badly and not at all.
package planner

import (
	"fmt"
	"time"

	"pagurus/decide/lifecycle"
	"pagurus/decide/placement"
	"pagurus/decide/state"
	"pagurus/fleet"
)

// Planner is configuration only; it keeps nothing between two Steps. The zero
// Planner spreads guests.
type Planner struct {
	Policy placement.Policy
}

// Decision is what one event leads to: commit Change, then send Orders, then
// give Answer to the caller.
type Decision struct {
	Change fleet.Changeset
	Orders []fleet.Order
	Answer fleet.Answer
}

// Refusal is a Request that cannot be met. It is an answer, not a fault.
type Refusal struct {
	Request fleet.Request
	Reason  string          // one sentence that ends with what to do next
	Hosts   []placement.Why // why each host was left out, when room was looked for
}

// Error is the reason, with that of every host.
func (r *Refusal) Error() string {
	if words := placement.Words(r.Hosts); words != "" {
		return r.Reason + " (" + words + ")"
	}
	return r.Reason
}

// Step decides what one event leads to. It makes an index of the snapshot
// first; a caller that takes many events keeps one, see StepOn.
func (p *Planner) Step(s fleet.Snapshot, ev fleet.Event) (Decision, error) {
	return p.StepOn(state.NewIndex(s, p.Policy), ev)
}

// StepOn decides what one event leads to. It only reads the index, by whose
// policy guests are placed. An error that is a *Refusal is the
// answer to the request; any other says that the event itself is nonsense.
// After either nothing is to be changed or sent.
func (p *Planner) StepOn(l *state.Index, ev fleet.Event) (Decision, error) {
	if one, is := ev.(fleet.Report); is {
		ev = fleet.Reports{one}
	}
	d, s := newDraft(p, l), l.Snapshot()
	defer d.free()
	var answer fleet.Answer
	var err error
	switch ev := ev.(type) {
	case fleet.Request:
		d.at = orElse(ev.At, s.At)
		answer, err = d.request(ev)
	case fleet.Reports:
		if err = d.heard(ev); err == nil && d.freed {
			d.drain()
		}
	case fleet.Observation:
		d.at = orElse(ev.At, s.At)
		d.observe(ev)
	case fleet.Tick:
		d.at = orElse(ev.At, s.At)
		err = d.tick()
	default:
		err = fmt.Errorf("event of unknown type %T", ev)
	}
	if err != nil {
		return Decision{}, err
	}
	d.foresee()
	return Decision{Change: d.change(), Orders: d.orders(), Answer: answer}, nil
}

func orElse(t, otherwise time.Time) time.Time {
	if t.IsZero() {
		return otherwise
	}
	return t
}

// pending is an order that is waited for, and since when.
type pending struct {
	order fleet.Order
	since time.Time
}

// programOrder adds what a job waits for, whose guest 0 is given with the
// migration that has it.
func programOrder(to []pending, j fleet.Job, guest0 fleet.Guest, m fleet.Migration) []pending {
	if o, waits := lifecycle.JobOrder(j, guest0, m); waits {
		since := j.Since
		if j.Ending != nil {
			since = j.Ending.At
		}
		to = append(to, pending{o, since})
	}
	return to
}

// guestOrders adds what a guest waits for, itself and by the migration that has it.
func guestOrders(to []pending, g *fleet.Guest, of func(fleet.MigrationID) fleet.Migration) []pending {
	if o, waits := lifecycle.GuestOrder(*g); waits {
		to = append(to, pending{o, g.Since})
	}
	if g.Migration != "" {
		m := of(g.Migration)
		if o, waits := lifecycle.MigrationOrder(m); waits {
			to = append(to, pending{o, m.Since})
		}
	}
	return to
}

// affinityIn has the asks of guests that go together prefer the sites where they are
// near the rest of their jobs.
func affinityIn(v *state.View, room *placement.Survey, guests []fleet.Guest, asks []placement.Ask) {
	site := func(id fleet.GuestID) string { return siteOf(v, id) }
	placement.MarkAffinity(room, placement.AffinityView{Job: v.Jobs.At, Site: site}, guests, asks)
}

// siteOf is where a guest is, or is on its way to.
func siteOf(v *state.View, id fleet.GuestID) string {
	g := v.Guests.At(id)
	at := g.Home
	if to := lifecycle.Next(g, v.Migrations.At(g.Migration)); to != "" {
		at = to
	}
	return v.Hosts.At(at).Facts.Site
}
