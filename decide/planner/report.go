package planner

import (
	"fmt"
	"slices"

	"pagurus/decide/desired"
	"pagurus/decide/lifecycle"
	"pagurus/fleet"
)

// heard handles reports that arrived together. If many guests of a job report, the job is
// settled once.
func (d *draft) heard(all []fleet.Report) error {
	for _, r := range all {
		r.At = orElse(r.At, d.base.At)
		d.at = r.At
		d.noRetry = d.noRetry || r.Outcome != fleet.Done
		if err := d.report(r); err != nil {
			return err
		}
	}
	d.align()
	return nil
}

// align settles the jobs whose guests answered.
func (d *draft) align() {
	slices.Sort(d.unaligned)
	for _, id := range slices.Compact(d.unaligned) {
		d.settleJob(id)
	}
	d.unaligned = d.unaligned[:0]
}

// report applies a report to its state machine. A report on no outstanding order is stale
// and changes nothing.
func (d *draft) report(r fleet.Report) error {
	if d.rebooted(r) {
		r.Cause, r.AtFault = fmt.Sprintf("%s was rebooted", r.Order.Host), true
	}
	if d.overtaken(r) {
		return nil
	}
	if r.Order.Checkpoint != "" && r.Order.Verb != fleet.Restore {
		return d.reportCheckpoint(r)
	}
	if r.Order.Migration == "" && r.Order.Verb != fleet.Run && r.Order.Verb != fleet.End {
		return d.reportGuest(r)
	}
	d.align() // the following reports may be about a job
	if r.Order.Migration != "" {
		return d.reportMigration(r)
	}
	return d.reportJob(r)
}

// rebooted reports whether an order failed because its host was rebooted after its subject had
// come there: the agent says only that it is not there.
func (d *draft) rebooted(r fleet.Report) bool {
	if r.Outcome != fleet.Failed && r.Outcome != fleet.Gone {
		return false
	}
	id := r.Order.Guest
	if id == "" {
		id = desired.GuestID(r.Order.Job, 0) // in which its program ran
	}
	since := d.Guests.At(id).Since
	if r.Order.Migration != "" {
		since = d.Migrations.At(r.Order.Migration).Since
	}
	h := d.base.Hosts[r.Order.Host]
	unseen := h.Boot != "" && h.Facts.Boot != "" && h.Facts.Boot != h.Boot
	return unseen || h.Booted.After(since)
}

func (d *draft) reportMigration(r fleet.Report) error {
	m, ok := d.Migrations.Find(r.Order.Migration)
	if !ok {
		return nil
	}
	members, changed, err := lifecycle.Gang(d.membersOf(d.Moves.At(m.Move)), r)
	if err != nil || !changed {
		return err
	}
	members, _ = d.goOn(members)
	d.recordGang(m.Move, members)
	return nil
}

func (d *draft) reportGuest(r fleet.Report) error {
	g, ok := d.Guests.Find(r.Order.Guest)
	if !ok {
		return nil
	}
	g, changed, err := lifecycle.Guest(g, r)
	if err != nil || !changed {
		return err
	}
	d.Guests.Put(g.ID, g)
	d.freed = d.freed || g.State.Ended()
	d.unaligned = append(d.unaligned, g.Job)
	return nil
}

func (d *draft) reportJob(r fleet.Report) error {
	j, ok := d.Jobs.Find(r.Order.Job)
	if !ok || j.Spec.Guests < 1 {
		return nil
	}
	guest0 := d.Guests.At(desired.GuestID(j.ID, 0))
	j, changed, err := lifecycle.Job(j, guest0, d.Migrations.At(guest0.Migration), r)
	if err != nil || !changed {
		return err
	}
	d.Jobs.Put(j.ID, j)
	d.settleJob(j.ID)
	return nil
}
