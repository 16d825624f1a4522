package planner

import (
	"cmp"
	"slices"

	"pagurus/decide/desired"
	"pagurus/decide/lifecycle"
	"pagurus/decide/state"
	"pagurus/fleet"
)

// Pending returns all outstanding orders in a fixed order, grouped by host. A new leader
// sends them unchanged, and so does a controller whose agent reconnects. Orders already
// carried out are answered again.
func Pending(s fleet.Snapshot) []fleet.Order {
	var waits []pending
	of := func(id fleet.MigrationID) fleet.Migration { return s.Migrations[id] }
	for _, j := range s.Jobs {
		if j.State == fleet.JobEnded || j.State == fleet.JobPending || j.State == fleet.JobSuspended {
			continue
		}
		for i, id := range desired.GuestIDs(j) {
			g := s.Guests[id]
			if i == 0 {
				waits = programOrder(waits, j, g, of(g.Migration))
			}
			waits = guestOrders(waits, &g, of)
		}
	}
	for _, c := range s.Checkpoints {
		waits = checkpointOrders(waits, &c, func(id fleet.GuestID) fleet.Guest { return s.Guests[id] })
	}
	out := make([]fleet.Order, len(waits))
	for i := range waits {
		out[i] = waits[i].order
	}
	slices.SortFunc(out, fleet.Order.Compare)
	return out
}

// Task returns an order with everything its host needs, except Have, which only the
// controller's spool knows.
func Task(s fleet.Snapshot, o fleet.Order) fleet.Task {
	t := fleet.Task{Order: o, Guest: s.Guests[o.Guest], Job: s.Jobs[o.Job]}
	if o.Guest == "" && t.Job.Spec.Guests > 0 { // a job's own orders are about its guest 0
		t.Guest = s.Guests[desired.GuestID(t.Job.ID, 0)]
	}
	if o.Checkpoint != "" && o.Verb != fleet.Drop {
		t.Deposit, t.FileHost = depositOf(s, o), fileHostOf(s, o)
	}
	if o.Migration != "" {
		m := s.Migrations[o.Migration]
		t.Listen, t.Orphan = m.Listen, m.Orphan
		t.Limits = decided(copyLimits(state.ViewOf(s), m), m)
	}
	return t
}

// depositOf says where the state of an order's guest goes to, or comes from.
func depositOf(s fleet.Snapshot, o fleet.Order) *fleet.Deposit {
	out := fleet.Deposit{Vault: o.Peer}
	if v := s.Hosts[o.Peer].Facts.Vault; v != nil && o.Peer != o.Host {
		out.Address = v.Listen
	}
	for _, p := range s.Checkpoints[o.Checkpoint].Guests {
		if p.Guest == o.Guest {
			out.Manifest = p.Manifest
		}
	}
	return &out
}

// fileHostOf says who clones the job's files for an order's host, which mounts them.
func fileHostOf(s fleet.Snapshot, o fleet.Order) *fleet.FileHost {
	j := s.Jobs[o.Job]
	if h := s.Hosts[o.Host]; j.ShareHost == "" || j.ShareHost == o.Host || j.Spec.Export == "" || h.Facts.Machine == j.Spec.Machine {
		return nil
	}
	out := fleet.FileHost{Host: j.ShareHost}
	if v := s.Hosts[j.ShareHost].Facts.Vault; v != nil {
		out.Address = v.Listen
	}
	return &out
}

// copyLimits are the limits of one copy of a move. Copies from one host share the
// bandwidth limit by size, so that they end together.
func copyLimits(s *state.View, m fleet.Migration) fleet.Limits {
	v := s.Moves.At(m.Move)
	l := v.Limits
	if m.Mode != "" {
		l.Mode = m.Mode
	}
	l.Lenient = l.Downtime <= 0
	l = lifecycle.Limits(l)
	l.AwaitGang = len(v.Migrations) > 1 || m.AtMark
	l.Preempt = m.Preempts
	if l.BytesPerSecond <= 0 {
		return l
	}
	own, all := s.Guests.At(m.Guest).Need.MemoryBytes, int64(0)
	for _, id := range v.Migrations {
		if other := s.Migrations.At(id); other.From == m.From {
			all += s.Guests.At(other.Guest).Need.MemoryBytes
		}
	}
	if all > own && own > 0 {
		l.BytesPerSecond = max(1, int64(float64(l.BytesPerSecond)*float64(own)/float64(all)))
	}
	return l
}

// sortedGuests returns the guests that want accepts, by job and index.
func sortedGuests(s fleet.Snapshot, want func(fleet.Guest) bool) []fleet.Guest {
	var out []fleet.Guest
	for _, g := range s.Guests {
		if want(g) {
			out = append(out, g)
		}
	}
	return inOrder(out)
}

func inOrder(of []fleet.Guest) []fleet.Guest {
	slices.SortFunc(of, func(a, b fleet.Guest) int {
		return cmp.Or(cmp.Compare(len(a.Job), len(b.Job)), cmp.Compare(a.Job, b.Job), cmp.Compare(a.Index, b.Index))
	})
	return of
}
