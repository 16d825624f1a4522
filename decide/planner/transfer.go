package planner

import (
	"fmt"
	"slices"

	"pagurus/decide/cost"
	"pagurus/decide/state"
	"pagurus/fleet"
)

// packs decides whether a migration's memory is sent compressed, once: the
// target is told when it makes room and the source when it copies, and both
// must do the same.
func packs(s *state.View, past history, m fleet.Migration) bool {
	if unable(s, m.Guest, m.From, m.To) != "" {
		return false
	}
	l := copyLimits(s, m) // by post-copy QEMU cannot
	return l.Mode != fleet.PostCopy && past.model(s, m).Packs(cost.Link{Share: share(s, m), Limits: l})
}

// decided is how a migration is copied once that is decided.
func decided(l fleet.Limits, m fleet.Migration) fleet.Limits {
	l.Compress = fleet.CompressOff
	if m.Packed {
		l.Compress = fleet.CompressOn
	}
	// One that is held is sent slowly on purpose; of one that is compressed QEMU holds
	// memory that was changed against less than was sent.
	hopeless := m.Predicted != nil && !m.Predicted.Converges
	l.Slow = hopeless && m.Mode == fleet.PreCopy && !m.Packed && !l.AwaitGang
	return l
}

// preempts reports whether what a guest that goes by post-copy waits for comes on
// a line of its own. Source and target have to agree, or the target waits for that
// line for ever: so it is decided once, since what a host says that it can do is
// missing while its agent restarts.
func preempts(s *state.View, m fleet.Migration) bool {
	can := func(h fleet.HostID) bool { return s.Hosts.At(h).Facts.Abilities[s.Guests.At(m.Guest).Kind].Preempt }
	return m.Mode == fleet.PostCopy && can(m.From) && can(m.To)
}

// unable says which of two hosts cannot compress a guest's memory; empty: none.
func unable(s *state.View, g fleet.GuestID, hosts ...fleet.HostID) fleet.HostID {
	for _, id := range hosts {
		if !s.Hosts.At(id).Facts.Abilities[s.Guests.At(g).Kind].Compress {
			return id
		}
	}
	return ""
}

// history is what past moves teach.
type history struct{ l *state.Index }

// model is what they teach about one migration.
func (o history) model(s *state.View, m fleet.Migration) cost.Model {
	g := s.Guests.At(m.Guest)
	return o.l.History().Fit(cost.Subject{Kind: g.Kind, Job: g.Job, From: m.From, To: m.To, ForOwner: forOwner(s, m)})
}

// forOwner reports whether a migration leaves a host to its owner.
func forOwner(s *state.View, m fleet.Migration) bool { return s.Moves.At(m.Move).ForOwner != "" }

// profileOf gives what its host last saw of a guest, or, if it has come only just
// now, what the host saw that it left last; nil if there is no sample.
func (o history) profileOf(home fleet.Host, g fleet.GuestID) *fleet.Profile {
	if p := home.Facts.Guests[g].Profile; p != nil {
		return p
	}
	return o.l.ProfileOf(g)
}

// unpackable says why guests cannot be sent compressed that somebody wants
// compressed; empty: they can, or nobody does.
func (d *draft) unpackable(l fleet.Limits, guests []fleet.Guest, to func(fleet.GuestID) fleet.HostID) string {
	switch {
	case l.Compress != fleet.CompressOn:
		return ""
	case slices.ContainsFunc(guests, func(g fleet.Guest) bool { return !g.Kind.Traits().Compresses }):
		return "a container's memory is never compressed; leave --" + fleet.CompressFlag + " out"
	case len(guests) > 1:
		return "guests that move together cannot be sent compressed, since QEMU could not wait for the last of them; move one at a time or leave --" + fleet.CompressFlag + " out"
	}
	for _, g := range guests {
		if id := unable(state.ViewOf(d.base), g.ID, g.Home, to(g.ID)); id != "" {
			return fmt.Sprintf("%s cannot send or take in compressed memory; install QEMU 9 or newer with zstd there, or leave --"+fleet.CompressFlag+" out", id)
		}
	}
	return ""
}
