package owners

import (
	"slices"
	"time"

	"pagurus/decide/cost"
	"pagurus/decide/lifecycle"
	"pagurus/decide/placement"
	"pagurus/decide/state"
	"pagurus/fleet"
)

// Cases returns the cases to judge on a host, one a job, sorted by ID; none unless its
// owner is present and it has running guests. They must be judged before the index
// changes.
func Cases(l *state.Index, id fleet.HostID, at time.Time) []Case {
	s := l.Snapshot()
	h := s.Hosts[id]
	if h.Facts.Owner == nil || !h.Facts.Owner.Present {
		return nil
	}
	var out []Case
	for _, g := range l.GuestsAt(id) {
		g := s.Guests[g]
		if g.State != fleet.GuestRunning {
			continue
		}
		i := slices.IndexFunc(out, func(o Case) bool { return o.Job == g.Job })
		if i < 0 {
			i = len(out)
			out = append(out, Case{At: at, Host: id, Owner: *h.Facts.Owner, Cores: h.Facts.Capacity.CPUs, Job: g.Job, Stuck: Action(h.Policy.Nowhere)})
		}
		out[i].Guests = append(out[i].Guests, g.ID)
		out[i].Held = out[i].Held || g.RetryAt.After(at)
	}
	for i := range out {
		o := &outlook{l: l, at: at, guests: out[i].Guests}
		out[i].Room, out[i].Price = o.room, o.price
	}
	slices.SortFunc(out, func(a, b Case) int { return compare(a.Job, b.Job) })
	return out
}

func compare(a, b fleet.JobID) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// outlook is where guests could go, computed on demand.
type outlook struct {
	l      *state.Index
	at     time.Time
	guests []fleet.GuestID
	asked  bool
	to     []fleet.HostID // by guest; nil: not all find room
}

// room reports whether all guests find room.
func (o *outlook) room() bool {
	if !o.asked {
		o.asked, o.to = true, o.find()
	}
	return o.to != nil
}

func (o *outlook) price() Price {
	if !o.room() {
		return Price{}
	}
	return PriceOf(o.l, o.guests, o.to)
}

func (o *outlook) find() []fleet.HostID {
	s := o.l.Snapshot()
	room := o.l.Room().Survey(o.at)
	to := make([]fleet.HostID, len(o.guests))
	for i, id := range o.guests {
		g := s.Guests[id]
		best, found := room.Where(placement.Leaving(s, g))
		if !found {
			return nil
		}
		to[i] = best
		room.Reserve(best, g.Need)
	}
	return to
}

// PriceOf predicts the cost of moving guests of one host to others.
func PriceOf(l *state.Index, guests []fleet.GuestID, to []fleet.HostID) Price {
	s, past := l.Snapshot(), l.History()
	var out Price
	for i, id := range guests {
		g := s.Guests[id]
		facts := s.Hosts[g.Home].Facts.Guests[id]
		model := past.Fit(cost.Subject{Kind: g.Kind, Job: g.Job, Guest: g.ID, From: g.Home, To: to[i], ForOwner: true}).
			Measured(s.Hosts[g.Home].Facts.Speed, s.Hosts[to[i]].Facts.Speed)
		link := cost.Link{Share: len(guests), Limits: lifecycle.Limits(fleet.Limits{})}
		p := model.Guess(g.Need.MemoryBytes, facts, link)
		if facts.Profile != nil {
			p = model.Predict(cost.Grown(*facts.Profile, facts.ResidentBytes, g.Need.MemoryBytes), link)
		}
		out.Total, out.Downtime = max(out.Total, p.Total.Value), max(out.Downtime, p.Downtime.Value)
	}
	return out
}

// Arriving returns the moves to a host that can still be cancelled, sorted by ID. They
// should not arrive while its owner is present.
func Arriving(l *state.Index, id fleet.HostID) []fleet.MoveID {
	var out []fleet.MoveID
	if l.Room().Arriving(id) == 0 {
		return nil
	}
	s := l.Snapshot()
	for _, v := range l.OpenMoves() {
		members := s.Moves[v].Migrations
		to := func(m fleet.MigrationID) bool { return s.Migrations[m].To == id }
		gone := func(m fleet.MigrationID) bool { return lifecycle.Committed(s.Migrations[m]) }
		if slices.ContainsFunc(members, to) && !slices.ContainsFunc(members, gone) {
			out = append(out, v)
		}
	}
	return out
}
