// Package queue decides when waiting jobs could begin, if jobs last as long as they may: first
// come, first served, with conservative backfill. Each waiting job has a reservation, the
// earliest room that those before it leave it. A later job may begin now only where it takes
// nothing that is reserved while it may last.
//
// It is pure and knows only memory and time: not what else a host must have for a guest, nor
// why a job waits. Its tests are small cases, and properties over random hosts and jobs.
package queue

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"pagurus/fleet"
)

// Forever is how long a job without a limit counts as lasting. It is longer than any limit, so
// that a job with a limit may pass a job that waits for one without; and it is counted from a
// job's own beginning, so that one that begins now never ends before one that has begun already.
const Forever = 2 * fleet.MostTime

// Return is memory that is free again later.
type Return struct {
	After time.Duration
	Bytes int64
}

// Host is a host's memory for guests, now and later.
type Host struct {
	ID      fleet.HostID
	Free    int64
	Returns []Return
}

// Ask is a job that waits.
type Ask struct {
	Guests int
	Bytes  int64 // of each guest
	Lasts  time.Duration
	Hosts  []fleet.HostID // which could take its guests if they were free
}

// Reservation is when a job begins at the latest, if all last no longer than they may.
type Reservation struct {
	After  time.Duration
	Guests map[fleet.HostID]int
}

// Plan is hosts' memory with what is reserved of it. The zero Plan knows no host.
type Plan struct {
	hosts map[fleet.HostID]timeline
	free  map[fleet.HostID]int64 // now, whatever is reserved
	held  map[fleet.HostID]bool  // hosts with something reserved
}

// timeline is the free memory of a host from each step on, in order of time. The first step is now.
type timeline []step

type step struct {
	at   time.Duration
	free int64
}

// Knows reports whether a host was added.
func (p *Plan) Knows(id fleet.HostID) bool { return p.hosts[id] != nil }

// Add adds a host.
func (p *Plan) Add(h Host) {
	if p.hosts == nil {
		p.hosts, p.free, p.held = map[fleet.HostID]timeline{}, map[fleet.HostID]int64{}, map[fleet.HostID]bool{}
	}
	all := slices.SortedFunc(slices.Values(h.Returns), func(a, b Return) int { return cmp.Compare(a.After, b.After) })
	t := timeline{{0, h.Free}}
	for _, r := range all {
		last := t[len(t)-1]
		if at := max(r.After, 1); at > last.at { // what runs is there now
			t = append(t, step{at, last.free + r.Bytes})
		} else {
			t[len(t)-1].free += r.Bytes
		}
	}
	p.hosts[h.ID], p.free[h.ID] = t, h.Free
}

// TakeRoom notes that a job begins on a host now.
func (p *Plan) TakeRoom(id fleet.HostID, bytes int64, lasts time.Duration) {
	p.hosts[id] = p.hosts[id].less(0, lasts, bytes)
	p.free[id] -= bytes
}

// Held is how much of each host's memory that is free now is not free for a job that lasts so
// long, because others have reserved it.
func (p *Plan) Held(lasts time.Duration) map[fleet.HostID]int64 {
	out := map[fleet.HostID]int64{}
	for id := range p.held {
		if held := p.free[id] - p.hosts[id].least(0, lasts); held > 0 {
			out[id] = held
		}
	}
	return out
}

// Reserve finds the earliest time at which a job fits until it ends, and reserves its room from
// then on. false: it does not fit even when all has ended.
func (p *Plan) Reserve(a Ask) (Reservation, bool) {
	ids := slices.Clone(a.Hosts)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	at, found := p.earliest(a, ids)
	if !found {
		return Reservation{}, false
	}
	r, left := Reservation{After: at, Guests: map[fleet.HostID]int{}}, a.Guests
	for _, id := range ids {
		n := min(left, p.hosts[id].slots(at, a))
		if n <= 0 {
			continue
		}
		r.Guests[id] = n
		p.hosts[id] = p.hosts[id].less(at, a.Lasts, int64(n)*a.Bytes)
		p.held[id] = true
		left -= n
	}
	return r, true
}

// change is how many more guests of a job a host has room for when the job begins at a time.
type change struct {
	at time.Duration
	by int
}

// earliest is the first time at which the hosts together have room for all guests of a job.
func (p *Plan) earliest(a Ask, ids []fleet.HostID) (time.Duration, bool) {
	changes, turns := make([]change, 0, 4*len(ids)), make([]time.Duration, 0, 32)
	for _, id := range ids {
		t, before := p.hosts[id], 0
		turns = t.turns(turns[:0], a.Lasts)
		for _, at := range turns {
			if n := t.slots(at, a); n != before {
				changes = append(changes, change{at, n - before})
				before = n
			}
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	room := 0
	for i, c := range changes {
		room += c.by
		if last := i == len(changes)-1 || changes[i+1].at != c.at; last && room >= a.Guests {
			return c.at, true
		}
	}
	return 0, false
}

// slots is how many guests of a job that begins at a time a host has room for until it ends.
func (t timeline) slots(at time.Duration, a Ask) int {
	if len(t) == 0 || a.Bytes <= 0 {
		return 0
	}
	return int(max(t.least(at, a.Lasts), 0) / a.Bytes)
}

// turns appends the times of beginning at which the least free memory may become another one, in order: the
// steps, and those just so long before a step that it is no longer after the end.
func (t timeline) turns(out []time.Duration, lasts time.Duration) []time.Duration {
	for _, s := range t {
		out = append(out, s.at)
		if before := s.at - lasts + 1; before > 0 {
			out = append(out, before)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// least is the least free memory in a time.
func (t timeline) least(from, lasts time.Duration) int64 {
	i, found := slices.BinarySearchFunc(t, from, func(s step, at time.Duration) int { return cmp.Compare(s.at, at) })
	if !found {
		i--
	}
	least := t[i].free
	for i++; i < len(t) && t[i].at < from+lasts; i++ {
		least = min(least, t[i].free)
	}
	return least
}

// less is a timeline with less memory free in a time.
func (t timeline) less(from, lasts time.Duration, bytes int64) timeline {
	t = t.split(from).split(from + lasts)
	for i := range t {
		if t[i].at >= from && t[i].at < from+lasts {
			t[i].free -= bytes
		}
	}
	return t
}

// split is a timeline with a step at a time.
func (t timeline) split(at time.Duration) timeline {
	i, found := slices.BinarySearchFunc(t, at, func(s step, at time.Duration) int { return cmp.Compare(s.at, at) })
	if found {
		return t
	}
	return slices.Insert(t, i, step{at, t[i-1].free})
}

// Clone is an independent copy.
func (p *Plan) Clone() *Plan {
	out := &Plan{hosts: make(map[fleet.HostID]timeline, len(p.hosts)), free: maps.Clone(p.free), held: maps.Clone(p.held)}
	for id, t := range p.hosts {
		out.hosts[id] = slices.Clone(t)
	}
	return out
}
