// Package planner makes all of the controller's decisions. Step is a pure function from
// the stored state and an event to changes and orders. Outstanding orders follow from the
// states alone, so a controller that was killed sends them again.
//
// It must not know the clock, the store or any connection: the live controller and the
// simulator differ only in where events come from and where orders go. Its tests run
// against a small simulated world that answers orders well, badly or not at all.
package planner

import (
	"fmt"
	"time"

	"pagurus/decide/lifecycle"
	"pagurus/decide/placement"
	"pagurus/decide/state"
	"pagurus/fleet"
)

// Planner is configuration only; it keeps nothing between two Steps. The zero Planner
// spreads guests.
type Planner struct {
	Policy   placement.Policy
	Keeps    fleet.CheckpointLimits // what users' checkpoints may take of all vaults
	VLANs    fleet.VLANs            // of hosts' cards, for jobs whose guests have virtual functions of them; zero: none
	GrowEach int                    // by how many guests all jobs of a user may grow together; 0: no limit
	KeepJobs time.Duration          // how long ended jobs and their output are kept; 0: an hour
}

// Decision is the result of one event: commit Change, then send Orders, then return
// Answer to the caller.
type Decision struct {
	Change fleet.Changeset
	Orders []fleet.Order
	Answer fleet.Answer
}

// Refusal is the answer to a Request that cannot be met, or to somebody who may not join.
// It is not a fault.
type Refusal struct {
	Request fleet.Request   // zero: somebody wanted to join
	Reason  string          // one sentence that ends with what to do next
	Hosts   []placement.Why // why each host was rejected, if room was searched
}

// Error is the reason, with the hosts' reasons.
func (r *Refusal) Error() string {
	if words := placement.Words(r.Hosts); words != "" {
		return r.Reason + " (" + words + ")"
	}
	return r.Reason
}

// Step handles one event. It makes an index of the snapshot first; a caller with many
// events keeps one, see StepOn.
func (p *Planner) Step(s fleet.Snapshot, ev fleet.Event) (Decision, error) {
	return p.StepOn(state.NewIndex(s, p.Policy), ev)
}

// StepOn handles one event. It only reads the index, whose policy places guests. A
// *Refusal is an answer; any other error means that the event is invalid.
// After either, nothing may be changed or sent.
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
			d.dequeue()
		}
	case fleet.Observation:
		d.at = orElse(ev.At, s.At)
		answer, err = d.observe(ev)
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

// programOrder appends a job's outstanding order, given guest 0 and its migration.
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

// guestOrders appends the outstanding orders of a guest and of its migration.
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

// affinityIn makes guests that move together prefer sites near the rest of their jobs.
func affinityIn(v *state.View, room *placement.Survey, guests []fleet.Guest, asks []placement.Ask) {
	site := func(id fleet.GuestID) string { return siteOf(v, id) }
	placement.MarkAffinity(room, placement.AffinityView{Job: v.Jobs.At, Site: site}, guests, asks)
}

// siteOf is the site where a guest is, or to which it moves.
func siteOf(v *state.View, id fleet.GuestID) string {
	g := v.Guests.At(id)
	at := g.Home
	if to := lifecycle.Next(g, v.Migrations.At(g.Migration)); to != "" {
		at = to
	}
	return v.Hosts.At(at).Facts.Site
}
