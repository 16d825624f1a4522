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

	"pagurus/decide/atlas"
	"pagurus/decide/lifecycle"
	"pagurus/decide/placement"
	"pagurus/fleet"
)

// Planner is configuration only; it keeps nothing between two Steps. The zero
// Planner spreads guests.
type Planner struct {
	Policy placement.Policy
}

// Decision is what one event leads to: commit Change, then send Orders, then
// give Answer to whoever asked.
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

// Step decides what one event leads to. An error that is a *Refusal is the
// answer to the request; any other says that the event itself is nonsense.
// After either nothing is to be changed or sent.
func (p *Planner) Step(s fleet.Snapshot, ev fleet.Event) (Decision, error) {
	d := newDraft(p, s)
	var answer fleet.Answer
	var err error
	switch ev := ev.(type) {
	case fleet.Request:
		d.at = orElse(ev.At, s.At)
		answer, err = d.request(ev)
	case fleet.Report:
		ev.At = orElse(ev.At, s.At)
		d.at = ev.At
		if err = d.report(ev); err == nil && d.freed {
			d.drain()
		}
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

func (p *Planner) policy() placement.Policy {
	if p.Policy == nil {
		return placement.Spread{}
	}
	return p.Policy
}

// silence says for how long a host has said nothing, counted at the earliest
// from when this controller began to lead; 0 while that is short enough.
func silence(s fleet.Snapshot, id fleet.HostID, at time.Time) time.Duration {
	last := s.Hosts[id].Facts.SeenAt
	if s.LedSince.After(last) {
		last = s.LedSince
	}
	if d := at.Sub(last); d > placement.SilentAfter {
		return d
	}
	return 0
}

// ask is the placement question for a guest that runs.
func ask(s fleet.Snapshot, g fleet.Guest) placement.Ask {
	home := s.Hosts[g.Home]
	needs, known := home.Facts.Abilities[g.Kind]
	return placement.Ask{
		Need: g.Need, Kind: g.Kind, Files: s.Jobs[g.Job].Spec.Machine,
		Alive: &placement.Source{Host: g.Home, Needs: needs, Known: known, Shape: g.Shape},
	}
}

// may reports whether a caller may act on a job.
func may(by fleet.Caller, j fleet.Job) bool { return by.Admin || by.UID == j.Spec.UID }

// jobOrders gives what a job and its guests wait for, at most one order each.
func jobOrders(j fleet.Job, guest func(fleet.GuestID) fleet.Guest, migration func(fleet.MigrationID) fleet.Migration) []pending {
	var out []pending
	add := func(o fleet.Order, since time.Time, waits bool) {
		if waits {
			out = append(out, pending{o, since})
		}
	}
	for i, id := range atlas.GuestIDs(j) {
		g := guest(id)
		m := migration(g.Migration)
		if i == 0 {
			o, waits := lifecycle.JobOrder(j, g, m)
			add(o, j.Since, waits)
		}
		o, waits := lifecycle.GuestOrder(g)
		add(o, g.Since, waits)
		if g.Migration != "" {
			o, waits = lifecycle.MigrationOrder(m)
			add(o, m.Since, waits)
		}
	}
	return out
}

// pending is an order that is waited for, and since when.
type pending struct {
	order fleet.Order
	since time.Time
}
