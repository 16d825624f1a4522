package placement

import (
	"slices"
	"strings"
	"time"

	"pagurus/decide/lifecycle"
	"pagurus/fleet"
)

// SilentAfter is the time without a report after which a host counts as silent. Agents
// report once a second, so it covers several lost messages and a restart.
const SilentAfter = 15 * time.Second

// Heard reports whether a host's agent is connected and can take orders.
func Heard(h fleet.Host, at time.Time) bool {
	return h.Facts.Connected && !h.Facts.SeenAt.IsZero() && at.Sub(h.Facts.SeenAt) <= SilentAfter
}

// Unheard is how long nothing was heard of a host, counted at the earliest from when this
// controller became leader; 0 until SilentAfter.
func Unheard(s fleet.Snapshot, id fleet.HostID, at time.Time) time.Duration {
	last := s.Hosts[id].Facts.SeenAt
	if s.LedSince.After(last) {
		last = s.LedSince
	}
	if d := at.Sub(last); d > SilentAfter {
		return d
	}
	return 0
}

// Survey is an Index with tentative changes. The index is not changed, and must not
// change while the survey is in use.
type Survey struct {
	At    time.Time
	index *Index
	over  map[fleet.HostID]*entry // with the changes
}

// held is what a host has promised to guests that are there or on their way.
type held struct {
	bytes    int64
	guests   int
	cpus     int // virtual CPUs of those guests
	incoming int // migrations in progress to it
	outgoing int // migrations in progress from it
}

func (h *held) count(need fleet.Resources, by int) {
	h.bytes += int64(by) * need.MemoryBytes
	h.guests += by
	h.cpus += by * need.CPUs
}

// NewSurvey makes a survey of a snapshot. For a series of snapshots keep an Index.
func NewSurvey(s fleet.Snapshot, p Policy) *Survey { return NewIndex(s, p).Survey(s.At) }

// Survey returns the index without changes.
func (x *Index) Survey(at time.Time) *Survey {
	return &Survey{At: at, index: x, over: map[fleet.HostID]*entry{}}
}

// Clone returns an independent copy.
func (v *Survey) Clone() *Survey {
	out := v.index.Survey(v.At)
	for id, e := range v.over {
		own := *e
		out.over[id] = &own
	}
	return out
}

// Hosts returns all hosts sorted by ID, in linear time.
func (v *Survey) Hosts() []fleet.Host {
	out := make([]fleet.Host, 0, len(v.index.slots))
	for id := range v.index.slots {
		if e := v.at(id); e.host.State != "" { // otherwise only a guest names it
			out = append(out, *e.host)
		}
	}
	for id, e := range v.over {
		if _, known := v.index.slots[id]; !known && e.host.State != "" {
			out = append(out, *e.host)
		}
	}
	slices.SortFunc(out, func(a, b fleet.Host) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return out
}

// at returns a host's entry, for reading; zero if unknown.
func (v *Survey) at(id fleet.HostID) *entry {
	if e, ok := v.over[id]; ok {
		return e
	}
	if i, ok := v.index.slots[id]; ok {
		return &v.index.entries[i]
	}
	return &entry{host: &fleet.Host{ID: id}}
}

// change returns a host's entry for changing.
func (v *Survey) change(id fleet.HostID) *entry {
	e, ok := v.over[id]
	if !ok {
		own := *v.at(id)
		e = &own
		v.over[id] = e
	}
	return e
}

// Host updates a host.
func (v *Survey) Host(h fleet.Host) { v.change(h.ID).host = &h }

// Guest adds a guest, with its migration if any; by -1 removes it.
func (v *Survey) Guest(g fleet.Guest, m fleet.Migration, by int) {
	for _, id := range lifecycle.Places(g, m) {
		v.change(id).held.count(g.Need, by)
	}
}

// Migration adds a migration; by -1 removes it.
func (v *Survey) Migration(m fleet.Migration, by int) {
	if m.ID != "" && !m.Phase.Ended() {
		v.change(m.From).held.outgoing += by
		v.change(m.To).held.incoming += by
	}
}

// Reserve adds a planned guest to a host.
func (v *Survey) Reserve(id fleet.HostID, need fleet.Resources) { v.change(id).held.count(need, 1) }

// Depart adds a migration that has begun.
func (v *Survey) Depart(from, to fleet.HostID, need fleet.Resources) {
	v.Reserve(to, need)
	v.change(from).held.outgoing++
	v.change(to).held.incoming++
}

// Busy returns the number of migrations in progress from and to a host.
func (v *Survey) Busy(id fleet.HostID) (outgoing, incoming int) {
	h := v.at(id).held
	return h.outgoing, h.incoming
}

// Guests is the number of guests on a host or on their way to it.
func (v *Survey) Guests(id fleet.HostID) int { return v.at(id).held.guests }

// CPUs is the number of virtual CPUs of those guests.
func (v *Survey) CPUs(id fleet.HostID) int { return v.at(id).held.cpus }

// FreeBytes is the memory of a host that is not promised to guests; negative if the host
// has lost memory.
func (v *Survey) FreeBytes(h *fleet.Host) int64 {
	return h.Facts.Capacity.MemoryBytes - v.at(h.ID).held.bytes
}
