package planner

import (
	"cmp"
	"maps"
	"slices"

	"pagurus/decide/lifecycle"
	"pagurus/fleet"
)

// Pending gives every order that is waited for, in a fixed order, those of one
// host together. A leader that takes over, and a controller whose agent calls
// again, sends them as they are: what has been carried out is answered again.
func Pending(s fleet.Snapshot) []fleet.Order {
	var out []fleet.Order
	for _, j := range s.Jobs {
		if j.State == fleet.JobEnded {
			continue
		}
		for _, p := range snapshotOrders(s, j) {
			out = append(out, p.order)
		}
	}
	slices.SortFunc(out, compareOrders)
	return out
}

// Task gives an order with all that its host needs to carry it out, but for
// what only the controller's spool knows (Have).
func Task(s fleet.Snapshot, o fleet.Order) fleet.Task {
	t := fleet.Task{Order: o, Guest: s.Guests[o.Guest], Job: s.Jobs[o.Job]}
	if o.Migration != "" {
		t.Listen = s.Migrations[o.Migration].Listen
		t.Limits = copyLimits(s, s.Migrations[o.Migration])
	}
	return t
}

// copyLimits bounds one copy of a move. Those that leave the same host share
// the ceiling by their size, so that they end together.
func copyLimits(s fleet.Snapshot, m fleet.Migration) fleet.Limits {
	v := s.Moves[m.Move]
	l := v.Limits
	if m.Mode != "" {
		l.Mode = m.Mode
	}
	l = lifecycle.Limits(l)
	l.Hold = len(v.Migrations) > 1
	preempts := func(h fleet.HostID) bool { return s.Hosts[h].Facts.Abilities[s.Guests[m.Guest].Kind].Preempt }
	l.Preempt = l.Mode == fleet.PostCopy && preempts(m.From) && preempts(m.To)
	if l.BytesPerSecond <= 0 {
		return l
	}
	own, all := s.Guests[m.Guest].Need.MemoryBytes, int64(0)
	for _, id := range v.Migrations {
		if other := s.Migrations[id]; other.From == m.From {
			all += s.Guests[other.Guest].Need.MemoryBytes
		}
	}
	if all > own && own > 0 {
		l.BytesPerSecond = max(1, int64(float64(l.BytesPerSecond)*float64(own)/float64(all)))
	}
	return l
}

// Wanted gives all that should be on one host. For many hosts make one Atlas.
func Wanted(s fleet.Snapshot, host fleet.HostID) fleet.Wanted { return NewAtlas(s).Wanted(host) }

// Atlas is a snapshot turned over: what each host has to do with which jobs.
// Making it costs one pass over the guests, however many hosts are then asked
// for.
type Atlas struct {
	s      fleet.Snapshot
	jobs   map[fleet.HostID][]fleet.JobID
	guests map[fleet.HostID][]fleet.GuestID
}

// NewAtlas turns a snapshot over.
func NewAtlas(s fleet.Snapshot) *Atlas {
	a := &Atlas{s: s, jobs: map[fleet.HostID][]fleet.JobID{}, guests: map[fleet.HostID][]fleet.GuestID{}}
	for _, j := range sortedJobs(s) {
		on := map[fleet.HostID]bool{}
		if j.ShareHost != "" {
			on[j.ShareHost] = true
		}
		for _, id := range guestIDs(j) {
			g, ok := s.Guests[id]
			if !ok {
				continue
			}
			for _, host := range lifecycle.Places(g, live(s, g)) {
				on[host] = true
				a.guests[host] = append(a.guests[host], id)
			}
		}
		for host := range on {
			a.jobs[host] = append(a.jobs[host], j.ID)
		}
	}
	return a
}

// Hosts gives the hosts that have anything to do with jobs that go on, in order
// of ID.
func (a *Atlas) Hosts() []fleet.HostID { return slices.Sorted(maps.Keys(a.jobs)) }

// Wanted gives all that should be on one host.
func (a *Atlas) Wanted(host fleet.HostID) fleet.Wanted {
	w := fleet.Wanted{Cluster: a.s.Cluster.ID, Revision: a.s.Revision, Guests: slices.Sorted(slices.Values(a.guests[host]))}
	for _, id := range a.jobs[host] {
		w.Networks = append(w.Networks, a.network(a.s.Jobs[id], host))
	}
	return w
}

// network gives one job's network as one host has to know it.
func (a *Atlas) network(j fleet.Job, host fleet.HostID) fleet.Network {
	n := fleet.Network{Job: j.ID, Subnet: j.Subnet}
	for _, id := range guestIDs(j) { // by index, so by address
		g, ok := a.s.Guests[id]
		if !ok || g.State.Ended() {
			continue
		}
		m := live(a.s, g)
		carrier := lifecycle.Carrier(g, m)
		n.Endpoints = append(n.Endpoints, fleet.Endpoint{
			Addr: j.Subnet.GuestAddr(g.Index), MAC: j.Subnet.GuestMAC(g.Index),
			Host: carrier, VTEP: a.vtep(carrier), Next: a.next(g, m), Guest: g.ID,
		})
		if slices.Contains(lifecycle.Places(g, m), host) {
			n.Ports = append(n.Ports, fleet.Port{Guest: g.ID, Index: g.Index, MAC: j.Subnet.GuestMAC(g.Index)})
		}
	}
	if j.ShareHost != "" {
		n.Endpoints = append(n.Endpoints, fleet.Endpoint{
			Addr: j.Subnet.ShareAddr(), MAC: j.Subnet.ShareMAC(), Host: j.ShareHost, VTEP: a.vtep(j.ShareHost),
		})
	}
	if j.ShareHost == host {
		n.Share = &fleet.Share{Export: j.Spec.Export, UID: j.Spec.UID, GID: j.Spec.GID}
	}
	return n
}

// next is the address of the host a guest moves to while frames still go to the
// one it leaves.
func (a *Atlas) next(g fleet.Guest, m fleet.Migration) string {
	if to := lifecycle.Next(g, m); to != "" {
		return a.vtep(to)
	}
	return ""
}

// vtep is the host's address as its agent says, or as it last said.
func (a *Atlas) vtep(id fleet.HostID) string {
	h := a.s.Hosts[id]
	return cmp.Or(h.Facts.Address, h.Address)
}

// sortedJobs gives the jobs that have not ended, in the order they were
// submitted.
func sortedJobs(s fleet.Snapshot) []fleet.Job {
	out := make([]fleet.Job, 0, len(s.Jobs))
	for _, j := range s.Jobs {
		if j.State != fleet.JobEnded {
			out = append(out, j)
		}
	}
	slices.SortFunc(out, func(a, b fleet.Job) int {
		return cmp.Or(cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// sortedGuests gives the guests that want says, job by job and by index.
func sortedGuests(s fleet.Snapshot, want func(fleet.Guest) bool) []fleet.Guest {
	var out []fleet.Guest
	for _, g := range s.Guests {
		if want(g) {
			out = append(out, g)
		}
	}
	slices.SortFunc(out, func(a, b fleet.Guest) int {
		return cmp.Or(cmp.Compare(len(a.Job), len(b.Job)), cmp.Compare(a.Job, b.Job), cmp.Compare(a.Index, b.Index))
	})
	return out
}
