package placement

import (
	"math"
	"slices"
	"strconv"
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
	f := s.Hosts[id].Facts
	last := f.SeenAt
	if s.LedSince.After(last) || last.After(at) && !f.Connected { // the clock was set back since
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

	devices []fleet.Passthrough // that those guests have for themselves; never changed in place
}

func (h *held) count(need fleet.Resources, by int) {
	h.bytes += int64(by) * need.MemoryBytes
	h.guests += by
	h.cpus += by * need.CPUs
	h.devices = passed(h.devices, need.Device, by)
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

// Best returns the best host for a guest, equals by name, and false if none can take it.
// An undecided kind is settled first: hosts with a better kind exclude all others.
func (v *Survey) Best(a Ask) (Choice, bool) {
	if c, found := v.sited(a); found {
		return c, true
	}
	for _, s := range suitsOf(a) {
		if e, score := v.best(s); e != nil {
			return Choice{Host: e.host.ID, Kind: s.ask.Kind, Score: score, Reason: v.reason(s.why, e)}, true
		}
	}
	return Choice{}, false
}

// Where is Best without the reason.
func (v *Survey) Where(a Ask) (fleet.HostID, bool) {
	for _, s := range suitsOf(a) {
		if e, _ := v.best(s); e != nil {
			return e.host.ID, true
		}
	}
	return "", false
}

func (v *Survey) best(s suit) (*entry, float64) {
	best, score := (*entry)(nil), math.Inf(-1)
	try := func(e *entry) bool {
		if free := e.host.Facts.Capacity.MemoryBytes - e.held.bytes; free < s.ask.Need.MemoryBytes || Unfit(v, e.host, s.ask) != "" || !s.suits(e.host) {
			return false
		}
		if of := v.score(e, s.ask); best == nil || better(of, score, e.host.ID, best.host.ID) {
			best, score = e, of
		}
		return true
	}
	if len(s.ask.Only) > 0 {
		for _, id := range s.ask.Only {
			try(v.at(id))
		}
	} else {
		for c, q := range v.index.classes {
			if q.sizes.most() < s.ask.Need.MemoryBytes {
				continue
			}
			if able, has := c.abilities(s.ask.Kind); unable(able, has, s.ask) != "" || s.only != "" && able.Accelerator != s.only || s.site != "" && c.site != s.site {
				continue
			}
			q.walk(func(slot int) bool {
				e := &v.index.entries[slot]
				_, changed := v.over[e.host.ID]
				return !changed && try(e)
			})
		}
		for _, e := range v.over { // last: they usually have less free than others, and need no check
			if best == nil || better(v.score(e, s.ask), score, e.host.ID, best.host.ID) {
				try(e)
			}
		}
	}
	return best, score
}

// Full reports whether no host that could be chosen has so much memory free that one guest would have room.
func (v *Survey) Full(a Ask) bool {
	enough := func(e *entry) bool {
		return e.host.Facts.Capacity.MemoryBytes-e.held.bytes >= a.Need.MemoryBytes
	}
	for _, id := range a.Only {
		if enough(v.at(id)) {
			return false
		}
	}
	if len(a.Only) > 0 {
		return true
	}
	for _, q := range v.index.classes {
		if len(q.positions) > 0 && q.sizes.most() >= a.Need.MemoryBytes {
			return false
		}
	}
	for _, e := range v.over {
		if enough(e) {
			return false
		}
	}
	return true
}

func (v *Survey) score(e *entry, a Ask) float64 {
	return v.index.policy.Score(e.host, e.host.Facts.Capacity.MemoryBytes-e.held.bytes-a.Need.MemoryBytes, e.held.cpus)
}

// notSeen is how long owners are away of whom nothing was ever seen (act/owner).
const notSeen = 365 * 24 * time.Hour

// reason says why a host was chosen, after why.
func (v *Survey) reason(why string, e *entry) string {
	f := &e.host.Facts
	out := append(make([]byte, 0, 192), why...) // allocated once: it is made for every placed guest
	out = append(appendSize(out, f.Capacity.MemoryBytes-e.held.bytes), " of "...)
	out = append(appendSize(out, f.Capacity.MemoryBytes), " memory free, "...)
	out = append(strconv.AppendFloat(out, f.LoadCPUs, 'f', 1, 64), " of "...)
	out = append(strconv.AppendInt(out, int64(f.Capacity.CPUs), 10), " CPUs busy, "...)
	out = append(appendCount(out, e.held.guests, "guest"), " there"...)
	if f.Owner != nil && f.Owner.State != "" {
		if idle := f.Owner.IdleFor(v.At); idle < notSeen {
			out = append(append(out, ", its owner away for "...), idle.Round(time.Minute).String()...)
		} else {
			out = append(out, ", no sign of its owner yet"...)
		}
	}
	return string(out)
}
