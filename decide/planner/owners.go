package planner

import (
	"fmt"
	"slices"

	"pagurus/decide/health"
	"pagurus/decide/lifecycle"
	"pagurus/decide/owners"
	"pagurus/decide/vacating"
	"pagurus/fleet"
)

// evaluateOwners applies the owners' policies: hosts drain for owners who stay, guests
// with no better choice are suspended, and jobs restart. All of this ends when the owners
// go.
func (d *draft) evaluateOwners() {
	still := map[fleet.GuestID]bool{}
	for _, id := range d.attended() {
		h := d.base.Hosts[id]
		v := owners.EvaluateHost(d.l, h)
		for _, g := range v.Suspend {
			still[g] = true
		}
		for _, j := range v.Requeue {
			d.requeue(j, id)
		}
		h, changed := owners.Vacate(h, v.Leave, d.base.At, d.at)
		if !changed {
			h, changed = health.Vacate(h, d.base.At, d.at)
		}
		if noted, did := vacating.Vacate(h, d.base.At, d.at); did {
			h, changed = noted, true
		}
		if wished, did := owners.Adopt(h); did {
			h, changed = wished, true
		}
		if h.Facts.Address != "" && h.Facts.Address != h.Address {
			h.Address, changed = h.Facts.Address, true
		}
		if w := h.Facts.WireGuard; w != nil && w.Key != "" && w.WireGuardEnd != h.WireGuard {
			h.WireGuard, changed = w.WireGuardEnd, true
		}
		if h.Facts.Boot != "" && h.Facts.Boot != h.Boot {
			if h.Boot != "" {
				h = health.Rebooted(h, d.at)
				h.Booted = d.at
			}
			h.Boot, changed = h.Facts.Boot, true
		}
		if changed {
			d.Hosts.Put(id, h)
		}
	}
	for _, id := range d.l.Suspended() {
		if !still[id] {
			d.setSuspended(id, false)
		}
	}
	for id := range still {
		d.setSuspended(id, true)
	}
}

// attended returns the hosts to check: their address or boot changed, their owner is present
// beside guests, or they drain, perhaps for an owner who has gone.
func (d *draft) attended() []fleet.HostID {
	ids := slices.Concat(d.l.Readdressed(), d.l.Attended(), d.l.Draining(), d.l.Failing())
	slices.Sort(ids)
	return slices.Compact(ids)
}

// setSuspended suspends or resumes a guest for its host's owner.
func (d *draft) setSuspended(id fleet.GuestID, still bool) {
	if g, ok := d.Guests.Find(id); ok && g.Suspended != still {
		g.Suspended = still
		d.Guests.Put(id, g)
	}
}

// requeue stops a job that is to begin again.
func (d *draft) requeue(id fleet.JobID, host fleet.HostID) {
	j, changed := lifecycle.Requeue(d.Jobs.At(id), fmt.Sprintf("the owner of %s is there; it begins again where there is room", host), d.at)
	if changed {
		d.Jobs.Put(id, j)
		d.settleJob(id)
	}
}

// relieve begins the moves that speed up a whole job.
func (d *draft) relieve() {
	if !owners.ReliefDue(d.l, d.at) {
		return
	}
	for _, p := range owners.PlanRelief(owners.ReliefView{At: d.at, Index: d.l, Room: d.room(), Guest: d.Guests.At, Job: d.Jobs.At}) {
		v := fleet.Move{Why: p.Why}
		d.depart(p.Guests, v, d.choose(p.Guests, p.To, v, nil))
	}
}

// rule changes the cluster's rules.
func (d *draft) rule(r fleet.Request) (fleet.Answer, error) {
	if reason := owners.Invalid(r.Rules); reason != "" {
		return refuse(r, "%s", reason)
	}
	d.counters().Rules = *r.Rules
	return fleet.Answer{}, nil
}
