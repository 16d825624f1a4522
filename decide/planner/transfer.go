package planner

import (
	"fmt"
	"slices"

	"pagurus/decide/cost"
	"pagurus/decide/state"
	"pagurus/fleet"
)

// packs decides once whether a migration's memory is compressed. Target and source learn
// it at different times, and both must do the same.
func packs(s *state.View, past history, m fleet.Migration) bool {
	if unable(s, m.Guest, m.From, m.To) != "" {
		return false
	}
	l := copyLimits(s, m) // QEMU cannot compress in post-copy
	return l.Mode != fleet.PostCopy && past.model(s, m).Packs(cost.Link{Share: share(s, m), Limits: l})
}

// decided adds the decisions stored with a migration to its limits.
func decided(l fleet.Limits, m fleet.Migration) fleet.Limits {
	l.Compress = fleet.CompressOff
	if m.Packed {
		l.Compress = fleet.CompressOn
	}
	// A copy that waits for its gang is slowed on purpose. With compression QEMU compares
	// changed memory with less than was sent, and so throttles wrongly.
	hopeless := m.Predicted != nil && !m.Predicted.Converges
	l.Slow = hopeless && m.Mode == fleet.PreCopy && !m.Packed && !l.AwaitGang
	return l
}

// preempts decides whether post-copy sends requested pages over a separate connection.
// Source and target must agree, or the target waits for that connection without end. It is
// decided once, because a host's abilities are unknown while its agent restarts.
func preempts(s *state.View, m fleet.Migration) bool {
	can := func(h fleet.HostID) bool { return s.Hosts.At(h).Facts.Abilities[s.Guests.At(m.Guest).Kind].Preempt }
	return m.Mode == fleet.PostCopy && can(m.From) && can(m.To)
}

// unable returns the first of two hosts that cannot compress a guest's memory; empty:
// none.
func unable(s *state.View, g fleet.GuestID, hosts ...fleet.HostID) fleet.HostID {
	for _, id := range hosts {
		if !s.Hosts.At(id).Facts.Abilities[s.Guests.At(g).Kind].Compress {
			return id
		}
	}
	return ""
}

// history is the data about past moves.
type history struct{ l *state.Index }

// model is the cost model for one migration.
func (o history) model(s *state.View, m fleet.Migration) cost.Model {
	g := s.Guests.At(m.Guest)
	learnt := o.l.History().Fit(cost.Subject{Kind: g.Kind, Job: g.Job, Guest: g.ID, From: m.From, To: m.To, ForOwner: forOwner(s, m)})
	return learnt.Measured(s.Hosts.At(m.From).Facts.Speed, s.Hosts.At(m.To).Facts.Speed)
}

// forOwner reports whether a migration vacates a host for its owner.
func forOwner(s *state.View, m fleet.Migration) bool { return s.Moves.At(m.Move).ForOwner != "" }

// profileOf is a guest's latest profile. If it has just arrived, that is the profile from
// its last host; nil if there is none.
func (o history) profileOf(home fleet.Host, g fleet.GuestID) *fleet.Profile {
	if p := home.Facts.Guests[g].Profile; p != nil {
		return p
	}
	return o.l.ProfileOf(g)
}

// unpackable says why guests cannot be compressed as requested; empty: they can, or it
// was not requested.
func (d *draft) unpackable(l fleet.Limits, guests []fleet.Guest, to func(fleet.GuestID) fleet.HostID) string {
	never := slices.IndexFunc(guests, func(g fleet.Guest) bool { return !g.Kind.Traits().Compresses })
	switch {
	case l.Compress != fleet.CompressOn:
		return ""
	case never >= 0:
		return fmt.Sprintf("a %s's memory is never compressed; leave --"+fleet.CompressFlag+" out", guests[never].Kind)
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
