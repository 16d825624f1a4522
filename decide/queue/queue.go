// Package queue decides when waiting jobs could begin, if jobs last as long as they may: first
// come, first served, with conservative backfill. Each waiting job has a reservation, the
// earliest room that those before it leave it. A later job may begin now only where it takes
// nothing that is reserved while it may last.
//
// It is pure and knows only memory, devices and time: not what else a host must have for a guest, nor
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

// Return is memory that is free again later, and a device with it.
type Return struct {
	After  time.Duration
	Bytes  int64
	Device fleet.Passthrough // empty: none
}

// Host is a host's memory and devices for guests, now and later.
type Host struct {
	ID      fleet.HostID
	Free    int64
	Devices []fleet.Passthrough // that are free
	Returns []Return
}

// Ask is a job that waits.
type Ask struct {
	Guests int
	Bytes  int64 // of each guest
	Lasts  time.Duration
	Hosts  []fleet.HostID // which could take its guests if they were free

	Device fleet.Passthrough // that each guest has for itself; empty: none
}

// Held is what is free on a host now and reserved for others.
type Held struct {
	Bytes   int64
	Devices []fleet.Passthrough // sorted
}

// Reservation is when a job begins at the latest, if all last no longer than they may.
type Reservation struct {
	After  time.Duration
	Guests map[fleet.HostID]int
}

// Plan is hosts' memory and devices with what is reserved of them. The zero Plan knows no host.
type Plan struct {
	hosts map[fleet.HostID]timeline
	free  map[fleet.HostID]int64 // now, whatever is reserved
	held  map[fleet.HostID]bool  // hosts with something reserved

	devices map[fleet.HostID]map[fleet.Passthrough]device // of the few hosts that have some
}

// device is one device of a host, or several that are alike.
type device struct {
	line timeline // how many no guest has
	free int64    // now, whatever is reserved
}

// timeline is how much of something is free from each step on, in order of time: bytes of a host's memory, or a device. The first
// step is now.
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
	t, devices := timeline{{0, h.Free}}, map[fleet.Passthrough]device{}
	for _, d := range h.Devices {
		is, known := devices[d]
		if !known {
			is.line = timeline{{0, 0}}
		}
		is.line[0].free++
		is.free++
		devices[d] = is
	}
	for _, r := range all {
		t = t.more(r.After, r.Bytes)
		if r.Device == "" {
			continue
		}
		is, known := devices[r.Device]
		if !known {
			is.line = timeline{{0, 0}}
		}
		is.line = is.line.more(r.After, 1)
		devices[r.Device] = is
	}
	p.hosts[h.ID], p.free[h.ID] = t, h.Free
	if len(devices) > 0 {
		if p.devices == nil {
			p.devices = map[fleet.HostID]map[fleet.Passthrough]device{}
		}
		p.devices[h.ID] = devices
	}
}

// more is a timeline with more at its end.
func (t timeline) more(after time.Duration, by int64) timeline {
	last := t[len(t)-1]
	if at := max(after, 1); at > last.at { // what runs is there now
		return append(t, step{at, last.free + by})
	}
	t[len(t)-1].free += by
	return t
}

// TakeRoom notes that a guest of a job begins on a host now.
func (p *Plan) TakeRoom(id fleet.HostID, a Ask) {
	p.lessen(id, 0, 1, a)
	p.free[id] -= a.Bytes
	if d, has := p.devices[id][a.Device]; has {
		d.free--
		p.devices[id][a.Device] = d
	}
}

// lessen takes a host's room for guests of a job that begins at a time.
func (p *Plan) lessen(id fleet.HostID, at time.Duration, guests int, a Ask) {
	p.hosts[id] = p.hosts[id].less(at, a.Lasts, int64(guests)*a.Bytes)
	if d, has := p.devices[id][a.Device]; has {
		d.line = d.line.less(at, a.Lasts, int64(guests))
		p.devices[id][a.Device] = d
	}
}

// Held is what is free on hosts now and is not free for a job that lasts so long, because others have reserved it.
func (p *Plan) Held(lasts time.Duration) map[fleet.HostID]Held {
	out := map[fleet.HostID]Held{}
	for id := range p.held {
		h := Held{Bytes: max(p.free[id]-p.hosts[id].least(0, lasts), 0)}
		for name, d := range p.devices[id] {
			for range max(d.free-d.line.least(0, lasts), 0) {
				h.Devices = append(h.Devices, name)
			}
		}
		if slices.Sort(h.Devices); h.Bytes > 0 || len(h.Devices) > 0 {
			out[id] = h
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
		n := min(left, p.slots(id, at, a))
		if n <= 0 {
			continue
		}
		r.Guests[id] = n
		p.lessen(id, at, n, a)
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
		before := 0
		turns = p.hosts[id].turns(turns[:0], a.Lasts)
		if a.Device != "" {
			turns = p.devices[id][a.Device].line.turns(turns, a.Lasts)
		}
		slices.Sort(turns)
		for _, at := range slices.Compact(turns) {
			if n := p.slots(id, at, a); n != before {
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
func (p *Plan) slots(id fleet.HostID, at time.Duration, a Ask) int {
	t := p.hosts[id]
	if len(t) == 0 || a.Bytes <= 0 {
		return 0
	}
	n := int(max(t.least(at, a.Lasts), 0) / a.Bytes)
	if a.Device == "" {
		return n
	}
	d, has := p.devices[id][a.Device]
	if !has {
		return 0
	}
	return min(n, int(max(d.line.least(at, a.Lasts), 0)))
}

// turns appends the times of beginning at which the least that is free may become another one: the
// steps, and those just so long before a step that it is no longer after the end.
func (t timeline) turns(out []time.Duration, lasts time.Duration) []time.Duration {
	for _, s := range t {
		out = append(out, s.at)
		if before := s.at - lasts + 1; before > 0 {
			out = append(out, before)
		}
	}
	return out
}

// least is the least that is free in a time.
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

// less is a timeline with less free in a time.
func (t timeline) less(from, lasts time.Duration, by int64) timeline {
	t = t.split(from).split(from + lasts)
	for i := range t {
		if t[i].at >= from && t[i].at < from+lasts {
			t[i].free -= by
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
	for id, all := range p.devices {
		if out.devices == nil {
			out.devices = map[fleet.HostID]map[fleet.Passthrough]device{}
		}
		out.devices[id] = maps.Clone(all)
		for name, d := range all {
			out.devices[id][name] = device{slices.Clone(d.line), d.free}
		}
	}
	return out
}
