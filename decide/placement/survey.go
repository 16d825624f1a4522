package placement

import (
	"maps"
	"slices"
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

// Survey is a snapshot made ready for placing: what every host has promised
// already is added up once. It is changed only by Take
// and Depart.
type Survey struct {
	At    time.Time
	Hosts []fleet.Host // sorted by ID
	held  map[fleet.HostID]held
}

// held is what a host has promised to guests that are there or on their way.
type held struct {
	bytes    int64
	guests   int
	cpus     int // virtual ones of those guests
	incoming int // migrations that are under way to it
	outgoing int // migrations that are under way from it
}

// NewSurvey adds up a snapshot.
func NewSurvey(s fleet.Snapshot) *Survey {
	v := &Survey{At: s.At, held: make(map[fleet.HostID]held, len(s.Hosts))}
	v.Hosts = make([]fleet.Host, 0, len(s.Hosts))
	for _, id := range slices.Sorted(maps.Keys(s.Hosts)) {
		v.Hosts = append(v.Hosts, s.Hosts[id])
	}
	for _, g := range s.Guests {
		for _, at := range lifecycle.Places(g, s.Migrations[g.Migration]) {
			h := v.held[at]
			h.bytes += g.Need.MemoryBytes
			h.guests++
			h.cpus += g.Need.CPUs
			v.held[at] = h
		}
	}
	for _, m := range s.Migrations {
		if m.Phase.Ended() {
			continue
		}
		to, from := v.held[m.To], v.held[m.From]
		to.incoming++
		from.outgoing++
		v.held[m.To], v.held[m.From] = to, from
	}
	return v
}

// Clone gives a survey of its own to try things with.
func (v *Survey) Clone() *Survey {
	return &Survey{At: v.At, Hosts: v.Hosts, held: maps.Clone(v.held)}
}

// Take notes that a guest is going to be on a host too.
func (v *Survey) Take(id fleet.HostID, need fleet.Resources) {
	h := v.held[id]
	h.bytes += need.MemoryBytes
	h.guests++
	h.cpus += need.CPUs
	v.held[id] = h
}

// Depart notes that a migration has begun.
func (v *Survey) Depart(from, to fleet.HostID, need fleet.Resources) {
	v.Take(to, need)
	a, b := v.held[from], v.held[to]
	a.outgoing++
	b.incoming++
	v.held[from], v.held[to] = a, b
}

// Busy reports how many migrations are under way from and to a host.
func (v *Survey) Busy(id fleet.HostID) (outgoing, incoming int) {
	return v.held[id].outgoing, v.held[id].incoming
}

// Guests is how many guests are on a host or on their way to it.
func (v *Survey) Guests(id fleet.HostID) int { return v.held[id].guests }

// CPUs is how many virtual CPUs those guests have.
func (v *Survey) CPUs(id fleet.HostID) int { return v.held[id].cpus }

// FreeBytes is the memory of a host that is promised to no guest; less than
// nothing when it has lost some.
func (v *Survey) FreeBytes(h fleet.Host) int64 {
	return h.Facts.Capacity.MemoryBytes - v.held[h.ID].bytes
}
