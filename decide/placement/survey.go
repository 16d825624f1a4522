package placement

import (
	"slices"
	"strings"
	"time"

	"pagurus/decide/lifecycle"
	"pagurus/fleet"
)

// SilentAfter is how long a host may say nothing before it counts as silent:
// agents speak once a second, so this is several lost messages and a restart.
const SilentAfter = 15 * time.Second

// Heard reports whether a host's agent is there to take orders.
func Heard(h fleet.Host, at time.Time) bool {
	return h.Facts.Connected && !h.Facts.SeenAt.IsZero() && at.Sub(h.Facts.SeenAt) <= SilentAfter
}

// Silence says for how long a host has said nothing, counted at the earliest
// from when this controller began to lead; 0 while that is short enough.
func Silence(s fleet.Snapshot, id fleet.HostID, at time.Time) time.Duration {
	last := s.Hosts[id].Facts.SeenAt
	if s.LedSince.After(last) {
		last = s.LedSince
	}
	if d := at.Sub(last); d > SilentAfter {
		return d
	}
	return 0
}

// Survey is an Index with changes laid over it that are only thought of. The
// index stays as it is, and must not change while the survey is in use.
type Survey struct {
	At    time.Time
	index *Index
	over  map[fleet.HostID]*entry // as they would be
}

// held is what a host has promised to guests that are there or on their way.
type held struct {
	bytes    int64
	guests   int
	cpus     int // virtual ones of those guests
	incoming int // migrations that are under way to it
	outgoing int // migrations that are under way from it
}

func (h *held) count(need fleet.Resources, by int) {
	h.bytes += int64(by) * need.MemoryBytes
	h.guests += by
	h.cpus += by * need.CPUs
}

// NewSurvey adds up a snapshot. Who surveys one snapshot after the other keeps
// an Index.
func NewSurvey(s fleet.Snapshot, p Policy) *Survey { return NewIndex(s, p).Survey(s.At) }

// Survey gives the index as it is, with nothing changed yet.
func (x *Index) Survey(at time.Time) *Survey {
	return &Survey{At: at, index: x, over: map[fleet.HostID]*entry{}}
}

// Clone gives a survey of its own to try things with.
func (v *Survey) Clone() *Survey {
	out := v.index.Survey(v.At)
	for id, e := range v.over {
		own := *e
		out.over[id] = &own
	}
	return out
}

// Hosts gives all hosts in order of ID. It costs a pass over them.
func (v *Survey) Hosts() []fleet.Host {
	out := make([]fleet.Host, 0, len(v.index.slots))
	for id := range v.index.slots {
		if e := v.at(id); e.host.State != "" { // else a guest names it that is not known
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

// at gives what is known of a host; an entry of zeros if it is not known. It is
// for reading.
func (v *Survey) at(id fleet.HostID) *entry {
	if e, ok := v.over[id]; ok {
		return e
	}
	if i, ok := v.index.slots[id]; ok {
		return &v.index.entries[i]
	}
	return &entry{host: &fleet.Host{ID: id}}
}

// change gives a host's entry to be changed.
func (v *Survey) change(id fleet.HostID) *entry {
	e, ok := v.over[id]
	if !ok {
		own := *v.at(id)
		e = &own
		v.over[id] = e
	}
	return e
}

// Host notes that a host is different.
func (v *Survey) Host(h fleet.Host) { v.change(h.ID).host = &h }

// Guest notes that a guest is there, with the migration that has it, or, with
// by of -1, that it is not.
func (v *Survey) Guest(g fleet.Guest, m fleet.Migration, by int) {
	for _, id := range lifecycle.Places(g, m) {
		v.change(id).held.count(g.Need, by)
	}
}

// Migration notes that a migration is there, or, with by of -1, that it is not.
func (v *Survey) Migration(m fleet.Migration, by int) {
	if m.ID != "" && !m.Phase.Ended() {
		v.change(m.From).held.outgoing += by
		v.change(m.To).held.incoming += by
	}
}

// Reserve notes that a guest is going to be on a host too.
func (v *Survey) Reserve(id fleet.HostID, need fleet.Resources) { v.change(id).held.count(need, 1) }

// Depart notes that a migration has begun.
func (v *Survey) Depart(from, to fleet.HostID, need fleet.Resources) {
	v.Reserve(to, need)
	v.change(from).held.outgoing++
	v.change(to).held.incoming++
}

// Busy reports how many migrations are under way from and to a host.
func (v *Survey) Busy(id fleet.HostID) (outgoing, incoming int) {
	h := v.at(id).held
	return h.outgoing, h.incoming
}

// Guests is how many guests are on a host or on their way to it.
func (v *Survey) Guests(id fleet.HostID) int { return v.at(id).held.guests }

// CPUs is how many virtual CPUs those guests have.
func (v *Survey) CPUs(id fleet.HostID) int { return v.at(id).held.cpus }

// FreeBytes is the memory of a host that is promised to no guest; less than
// nothing when it has lost some.
func (v *Survey) FreeBytes(h *fleet.Host) int64 {
	return h.Facts.Capacity.MemoryBytes - v.at(h.ID).held.bytes
}
