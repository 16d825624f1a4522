package owners

import (
	"slices"
	"time"

	"pagurus/decide/cost"
	"pagurus/decide/ledger"
	"pagurus/decide/lifecycle"
	"pagurus/decide/placement"
	"pagurus/fleet"
)

// Scenes gives what there is to judge on a host, one scene a job in order of
// its ID; none unless its owner is there and it has guests that run.
func Scenes(l *ledger.Ledger, id fleet.HostID, at time.Time) []Scene {
	s := l.Snapshot()
	h := s.Hosts[id]
	if h.Facts.Owner == nil || !h.Facts.Owner.Present {
		return nil
	}
	var out []Scene
	for _, g := range l.GuestsAt(id) {
		g := s.Guests[g]
		if g.State != fleet.GuestRunning {
			continue
		}
		i := slices.IndexFunc(out, func(o Scene) bool { return o.Job == g.Job })
		if i < 0 {
			i = len(out)
			out = append(out, Scene{At: at, Host: id, Owner: *h.Facts.Owner, Cores: h.Facts.Capacity.CPUs, Job: g.Job})
		}
		out[i].Guests = append(out[i].Guests, g.ID)
		out[i].Held = out[i].Held || g.RetryAt.After(at)
	}
	for i := range out {
		weigh(l, &out[i])
	}
	slices.SortFunc(out, func(a, b Scene) int { return compare(a.Job, b.Job) })
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

// weigh finds out whether guests could leave, and what that would cost.
func weigh(l *ledger.Ledger, o *Scene) {
	s := l.Snapshot()
	room, past := l.Room().Survey(o.At), l.Lore()
	o.Room = true
	for _, id := range o.Guests {
		g := s.Guests[id]
		home := s.Hosts[g.Home].Facts
		needs, known := home.Abilities[g.Kind]
		to, found := room.Best(placement.Ask{Need: g.Need, Kind: g.Kind, Files: s.Jobs[g.Job].Spec.Machine,
			Alive: &placement.Source{Host: g.Home, Needs: needs, Known: known}})
		if !found {
			o.Room = false
			return
		}
		room.Take(to.Host, g.Need)
		model := past.Fit(cost.Subject{Kind: g.Kind, Job: g.Job, From: g.Home, To: to.Host})
		link := cost.Link{Share: len(o.Guests), Limits: lifecycle.Limits(fleet.Limits{})}
		p := model.Guess(g.Need.MemoryBytes, home.Guests[id], link)
		if look := home.Guests[id].Profile; look != nil {
			p = model.Predict(*look, link)
		}
		o.Total, o.Pause = max(o.Total, p.Total.Value), max(o.Pause, p.Downtime.Value)
	}
}

// Arriving gives the moves on their way to a host that can still be called off,
// in order of ID. They had better not arrive while its owner is there.
func Arriving(l *ledger.Ledger, id fleet.HostID) []fleet.MoveID {
	var out []fleet.MoveID
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
