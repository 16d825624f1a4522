package planner

import (
	"fmt"
	"slices"

	"pagurus/decide/lifecycle"
	"pagurus/decide/owners"
	"pagurus/decide/placement"
	"pagurus/decide/vacate"
	"pagurus/fleet"
)

// mind does what hosts' owners bring about: hosts drain for those who stay,
// guests that can do nothing better stand still, jobs begin again, each as the
// policy in force says; all of it ends when they go.
func (d *draft) mind() {
	still := map[fleet.GuestID]bool{}
	for _, id := range d.attended() {
		h := d.base.Hosts[id]
		h, changed := vacate.Host(h, d.judge(h, still), d.base.At, d.at)
		if h.Facts.Address != "" && h.Facts.Address != h.Address {
			h.Address, changed = h.Facts.Address, true
		}
		if changed {
			d.hosts.put[id] = h
		}
	}
	for _, id := range d.l.Still() {
		if !still[id] {
			d.stand(id, false)
		}
	}
	for id := range still {
		d.stand(id, true)
	}
}

// attended gives the hosts of which something may have to be noted: those that
// say another address, whose owner is there, or that drain, maybe for one who
// has gone.
func (d *draft) attended() []fleet.HostID {
	ids := slices.Concat(d.l.Readdressed(), d.l.Attended(), d.l.Draining())
	slices.Sort(ids)
	return slices.Compact(ids)
}

// judge asks the policy in force about a host's guests. It says whether guests
// leave the host as long as its owner is there, and adds those that shall stand
// still. Nothing changes while it is not known what the owner does, or while
// they may be leaving.
func (d *draft) judge(h fleet.Host, still map[fleet.GuestID]bool) (leave bool) {
	o := h.Facts.Owner
	if o == nil || !placement.Heard(h, d.base.At) || o.State == fleet.OwnerLeaving {
		for _, id := range d.l.GuestsAt(h.ID) {
			if g := d.guests.at(id); g.Still && g.State == fleet.GuestRunning {
				still[id] = true
			}
		}
		return h.ForOwner
	}
	policy := PolicyOf(h, d.base.Cluster.Rules)
	if o.State != fleet.OwnerPresent || policy.Name() == string(fleet.Stay) {
		return false
	}
	scenes := owners.Scenes(d.l, h.ID, d.at)
	leave = policy.Moves() && (h.ForOwner || len(scenes) == 0)
	for _, s := range scenes {
		switch j := policy.Judge(s); j.Do {
		case owners.Leave:
			leave = true
		case owners.Suspend:
			for _, id := range s.Guests {
				still[id] = true
			}
		case owners.Requeue:
			d.requeue(s.Job, h.ID)
		}
	}
	return leave
}

// PolicyOf is what becomes of guests on a host whose owner stays.
func PolicyOf(h fleet.Host, r fleet.Rules) owners.Policy {
	p, known := owners.Named(string(h.Vacates(r)))
	if !known { // a newer controller's
		p, _ = owners.Named(string(fleet.Evacuate))
	}
	return p
}

// stand has a guest stand still, or no longer.
func (d *draft) stand(id fleet.GuestID, still bool) {
	if g, ok := d.guests.find(id); ok && g.Still != still {
		g.Still = still
		d.guests.put[id] = g
	}
}

// requeue ends a job that is to begin again.
func (d *draft) requeue(id fleet.JobID, host fleet.HostID) {
	j := d.jobs.at(id)
	j, changed := lifecycle.Cancel(j, d.at, fmt.Sprintf("the owner of %s is there; it begins again where there is room", host))
	if !changed {
		return
	}
	j.Requeue = true
	d.jobs.put[id] = j
	d.settle(id)
}

// requeued lets the jobs begin again that have ended for it and find room.
func (d *draft) requeued() {
	for _, id := range d.l.Requeued() {
		j := d.jobs.at(id)
		if j.State != fleet.JobEnded || !j.Requeue {
			continue
		}
		spec := j.Spec
		answer, err := d.submit(fleet.Request{
			ID: fleet.RequestID("again-" + string(id)), At: d.at, By: fleet.Caller{UID: spec.UID, Admin: true}, Verb: fleet.Submit,
			Spec: &spec, Image: &fleet.Image{Name: spec.Image, Digest: j.Digest, MPI: j.MPI},
		})
		if err != nil {
			continue // no room yet
		}
		j.Requeue, j.Again = false, answer.Job
		d.jobs.put[id] = j
	}
}

// rule changes what holds in the whole cluster.
func (d *draft) rule(r fleet.Request) (fleet.Answer, error) {
	switch {
	case !r.By.Admin:
		return refuse(r, "only an administrator may say what holds in the whole cluster")
	case r.Rules == nil:
		return refuse(r, "the request has no rules in it; pagurus and its controller may be of different versions, see pagurus version")
	}
	if _, known := owners.Named(string(r.Rules.Vacate)); !known && r.Rules.Vacate != "" {
		return refuse(r, "there is no policy %q; pagurus policy ls lists them", r.Rules.Vacate)
	}
	if _, known := placement.Named(r.Rules.Placement); !known && r.Rules.Placement != "" {
		return refuse(r, "there is no way to place guests %q; use spread or calm", r.Rules.Placement)
	}
	d.counters().Rules = *r.Rules
	return fleet.Answer{}, nil
}

// judged says what the policy in force thinks of a host's guests, whose owner
// stays.
func (e *explainer) judged(h fleet.Host) []string {
	if o := h.Facts.Owner; o == nil || o.State != fleet.OwnerPresent || !placement.Heard(h, e.s.At) {
		return nil
	}
	policy := PolicyOf(h, e.s.Cluster.Rules)
	var out []string
	for _, s := range owners.Scenes(e.p.ledger(e.s), h.ID, e.s.At) {
		j := policy.Judge(s)
		out = append(out, fmt.Sprintf("By the policy %s those of job %s %s: %s.", policy.Name(), s.Job, deeds[j.Do], j.Why))
	}
	return out
}

// deeds are in words what guests do.
var deeds = map[owners.Deed]string{
	owners.Stay: "stay", owners.Leave: "leave", owners.Suspend: "stand still", owners.Requeue: "end and begin again",
}
