package placement

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"pagurus/decide/lifecycle"
	"pagurus/fleet"
)

// Index is a cluster prepared for placement and updated as it changes. It has the sum of
// each host's promised resources. Equal hosts are in one queue, best first, so that the
// best is found without checking all.
type Index struct {
	policy   Policy
	cpu      string // of virtual machines that start, as in fleet.Rules
	slots    map[fleet.HostID]int
	entries  []entry // by slot
	free     []int   // slots of removed hosts
	classes  map[class]*queue
	machines map[string][]fleet.HostID // hosts by Facts.Machine
	sites    sites
	tight    []fleet.HostID // hosts whose guests have been promised more CPUs than others leave, sorted by ID
}

// entry is a host and its promised resources.
type entry struct {
	host  *fleet.Host
	held  held
	queue *queue // its queue; nil: it can take no guest
	class *queue // the queue of its class; nil: not looked up yet
	place int    // in the queue
	score float64
	free  int64 // as the queue counts it
	tight bool  // see Index.tight
}

// class is everything that distinguishes hosts for placement, except what they have
// promised.
type class struct {
	capacity fleet.Resources
	site     string
	kinds    [len(fleet.Kinds)]able // as in fleet.Kinds
}

// able is what a host can do with guests of a kind.
type able struct {
	fleet.Abilities
	has bool // its agent reports the kind
}

func classOf(h *fleet.Host) class {
	c := class{capacity: h.Facts.Capacity, site: h.Facts.Site}
	for i, t := range fleet.Kinds {
		c.kinds[i].Abilities, c.kinds[i].has = h.Facts.Abilities[t.Kind]
	}
	return c
}

func (c class) abilities(k fleet.Kind) (fleet.Abilities, bool) {
	for i, t := range fleet.Kinds {
		if t.Kind == k {
			return c.kinds[i].Abilities, c.kinds[i].has
		}
	}
	return fleet.Abilities{}, false
}

// NewIndex makes the index of a snapshot; the default policy is Spread.
func NewIndex(s fleet.Snapshot, p Policy) *Index {
	if p == nil {
		p = Spread{}
	}
	x := &Index{policy: p, cpu: s.Cluster.Rules.CPU, slots: make(map[fleet.HostID]int, len(s.Hosts)), classes: map[class]*queue{}, machines: map[string][]fleet.HostID{}, sites: sites{}}
	x.entries = make([]entry, 0, len(s.Hosts))
	for _, h := range s.Hosts {
		x.Host(&h)
	}
	for _, g := range s.Guests {
		x.Guest(g, s.Migrations[g.Migration], 1)
	}
	for _, m := range s.Migrations {
		x.Migration(m, 1)
	}
	return x
}

// Policy is the policy that orders the hosts.
func (x *Index) Policy() Policy { return x.policy }

// Host adds or updates a host.
func (x *Index) Host(h *fleet.Host) {
	i := x.slot(h.ID)
	e := &x.entries[i]
	if e.host.Facts.Machine != h.Facts.Machine {
		x.leave(h.ID, e.host.Facts.Machine)
		if m := h.Facts.Machine; m != "" {
			x.machines[m] = append(x.machines[m], h.ID)
		}
	}
	if e.host.Facts.Site != h.Facts.Site {
		x.sites.count(e.host.Facts.Site, -1)
		x.sites.count(h.Facts.Site, 1)
	}
	if e.class != nil && !alike(e.host, h) {
		e.class = nil
	}
	*e.host = *h
	x.requeueHost(i)
}

// alike reports whether two states of a host certainly have the same class, without
// computing it.
func alike(a, b *fleet.Host) bool {
	return a.Facts.Capacity == b.Facts.Capacity && a.Facts.Site == b.Facts.Site && maps.Equal(a.Facts.Abilities, b.Facts.Abilities)
}

// slot finds a slot for a host.
func (x *Index) slot(id fleet.HostID) int {
	i, known := x.slots[id]
	if known {
		return i
	}
	if last := len(x.free) - 1; last >= 0 {
		i, x.free = x.free[last], x.free[:last]
	} else {
		i = len(x.entries)
		x.entries = append(x.entries, entry{})
	}
	x.slots[id] = i
	x.entries[i] = entry{host: &fleet.Host{ID: id}}
	return i
}

// Forget removes a host that never comes back.
func (x *Index) Forget(id fleet.HostID) {
	i, known := x.slots[id]
	if !known {
		return
	}
	e := &x.entries[i]
	if e.queue != nil {
		e.queue.sizes.drop(e.free)
		e.queue.remove(x, i)
	}
	x.leave(id, e.host.Facts.Machine)
	x.sites.count(e.host.Facts.Site, -1)
	x.squeeze(e, false)
	x.entries[i] = entry{}
	x.free = append(x.free, i)
	delete(x.slots, id)
}

func (x *Index) leave(id fleet.HostID, machine string) {
	if machine == "" {
		return
	}
	x.machines[machine] = slices.DeleteFunc(x.machines[machine], func(h fleet.HostID) bool { return h == id })
	if len(x.machines[machine]) == 0 {
		delete(x.machines, machine)
	}
}

// On returns the hosts on a machine, sorted by ID.
func (x *Index) On(machine string) []fleet.HostID {
	out := slices.Clone(x.machines[machine])
	slices.Sort(out)
	return out
}

// EachHost calls do with every host, in no order. It must not change what it gets, nor keep it.
func (x *Index) EachHost(do func(*fleet.Host)) {
	for i := range x.entries {
		if h := x.entries[i].host; h != nil && h.State != "" { // else only a guest names it
			do(h)
		}
	}
}

// Guest adds a guest, with its migration if any; by -1 removes it.
func (x *Index) Guest(g fleet.Guest, m fleet.Migration, by int) {
	x.Occupy(lifecycle.Places(g, m), g.Need, by)
}

// Occupy adds a guest to hosts; by -1 removes it. Empty names are ignored.
func (x *Index) Occupy(hosts []fleet.HostID, need fleet.Resources, by int) {
	for _, id := range hosts {
		if id == "" {
			continue
		}
		i := x.slot(id)
		x.entries[i].held.count(need, by)
		x.requeueHost(i)
	}
}

// Migration adds a migration; by -1 removes it.
func (x *Index) Migration(m fleet.Migration, by int) {
	if m.ID != "" && !m.Phase.Ended() {
		x.Way(m.From, m.To, by)
	}
}

// Way adds a migration in progress between two hosts; by -1 removes it. Empty names are
// ignored.
func (x *Index) Way(from, to fleet.HostID, by int) {
	if from != "" {
		x.entries[x.slot(from)].held.outgoing += by
	}
	if to != "" {
		x.entries[x.slot(to)].held.incoming += by
	}
}

// Arriving is the number of migrations in progress to a host.
func (x *Index) Arriving(id fleet.HostID) int {
	if i, known := x.slots[id]; known {
		return x.entries[i].held.incoming
	}
	return 0
}

// requeueHost moves a host to its place in the queue of its class.
func (x *Index) requeueHost(i int) {
	e := &x.entries[i]
	x.squeeze(e, e.spare() < 0 && e.host.Facts.Capacity.CPUs > 0)
	o := e.host.Facts.Owner
	able := e.host.State == fleet.HostUp && e.host.Facts.Connected && (o == nil || !o.Present)
	var q *queue
	if able && e.class == nil {
		c := classOf(e.host)
		if e.class = x.classes[c]; e.class == nil {
			e.class = &queue{}
			x.classes[c] = e.class
		}
	}
	if able {
		q = e.class
	}
	score, free := 0.0, e.host.Facts.Capacity.MemoryBytes-e.held.bytes
	if able {
		score = x.policy.Score(e.host, free, e.held.cpus)
	}
	if e.queue != nil {
		e.queue.sizes.drop(e.free)
	}
	if e.free = free; q != nil {
		q.sizes.add(free)
	}
	switch {
	case q == e.queue && score == e.score:
		return
	case q == e.queue && q != nil:
		e.score = score
		q.mend(x, e.place, position{score, e.host.ID, i})
		return
	case e.queue != nil:
		e.queue.remove(x, i)
	}
	if e.score = score; q != nil {
		q.add(x, i)
	}
}

// queue is a heap of hosts, best first, equals by name. It contains all that is compared,
// because looking that up elsewhere would be most of the work.
type queue struct {
	positions []position
	sizes     sizes
}

type position struct {
	score float64
	id    fleet.HostID
	slot  int
}

func (s *position) better(than *position) bool { return better(s.score, than.score, s.id, than.id) }

func better(a, b float64, ida, idb fleet.HostID) bool {
	if a != b {
		return a > b
	}
	return ida < idb
}

func (q *queue) put(x *Index, place int, s position) {
	q.positions[place] = s
	x.entries[s.slot].queue, x.entries[s.slot].place = q, place
}

func (q *queue) add(x *Index, slot int) {
	e := &x.entries[slot]
	q.positions = append(q.positions, position{})
	q.mend(x, len(q.positions)-1, position{e.score, e.host.ID, slot})
}

func (q *queue) remove(x *Index, slot int) {
	e := &x.entries[slot]
	last, place := len(q.positions)-1, e.place
	moved := q.positions[last]
	q.positions = q.positions[:last]
	e.queue = nil
	if place < last {
		q.mend(x, place, moved)
	}
}

// mend puts a host into the heap, starting at a free place.
func (q *queue) mend(x *Index, at int, s position) {
	for at > 0 && s.better(&q.positions[(at-1)/2]) {
		q.put(x, at, q.positions[(at-1)/2])
		at = (at - 1) / 2
	}
	for {
		child := 2*at + 1
		if child+1 < len(q.positions) && q.positions[child+1].better(&q.positions[child]) {
			child++
		}
		if child >= len(q.positions) || !q.positions[child].better(&s) {
			break
		}
		q.put(x, at, q.positions[child])
		at = child
	}
	q.put(x, at, s)
}

// walk visits the hosts, best first, until take accepts one.
func (q *queue) walk(take func(slot int) bool) {
	if len(q.positions) == 0 {
		return
	}
	edge := append(make([]int, 0, 64), 0) // a heap of places whose parents have been visited
	less := func(a, b int) bool { return q.positions[edge[a]].better(&q.positions[edge[b]]) }
	for len(edge) > 0 {
		at := edge[0]
		if take(q.positions[at].slot) {
			return
		}
		last := len(edge) - 1
		edge[0] = edge[last]
		edge = edge[:last]
		sink(edge, less)
		for _, child := range [2]int{2*at + 1, 2*at + 2} {
			if child < len(q.positions) {
				edge = append(edge, child)
				lift(edge, less)
			}
		}
	}
}

// sink restores a heap whose first element may be misplaced; lift one whose last may be.
func sink(heap []int, less func(a, b int) bool) {
	for at := 0; ; {
		best := at
		for _, child := range [2]int{2*at + 1, 2*at + 2} {
			if child < len(heap) && less(child, best) {
				best = child
			}
		}
		if best == at {
			return
		}
		heap[at], heap[best] = heap[best], heap[at]
		at = best
	}
}

func lift(heap []int, less func(a, b int) bool) {
	for at := len(heap) - 1; at > 0 && less(at, (at-1)/2); at = (at - 1) / 2 {
		heap[at], heap[(at-1)/2] = heap[(at-1)/2], heap[at]
	}
}

// Check returns the differences between the index and one newly made; empty: none. It is
// for tests.
func (x *Index) Check(s fleet.Snapshot) string {
	anew := NewIndex(s, x.policy)
	for id, i := range anew.slots {
		j, known := x.slots[id]
		a := &anew.entries[i]
		if !known {
			return fmt.Sprintf("%s is missing", id)
		}
		b := &x.entries[j]
		if !reflect.DeepEqual(a.held, b.held) || a.tight != b.tight || a.score != b.score || (a.queue == nil) != (b.queue == nil) {
			return fmt.Sprintf("%s: %+v %v, should be %+v %v", id, b.held, b.score, a.held, a.score)
		}
		if b.queue != nil && (b.queue.positions[b.place].slot != j || x.classes[classOf(b.host)] != b.queue) {
			return fmt.Sprintf("%s stands in the wrong place", id)
		}
	}
	for c, q := range anew.classes {
		if was := x.classes[c]; was == nil || q.sizes != was.sizes {
			return fmt.Sprintf("hosts of %+v are counted wrongly by what they have free", c)
		}
	}
	if !maps.Equal(anew.sites, x.sites) {
		return fmt.Sprintf("sites: %v, should be %v", x.sites, anew.sites)
	}
	if !slices.Equal(x.tight, anew.tight) {
		return fmt.Sprintf("tight: %v, should be %v", x.tight, anew.tight)
	}
	for _, m := range slices.Sorted(maps.Keys(anew.machines)) {
		if !slices.Equal(anew.On(m), x.On(m)) {
			return fmt.Sprintf("machine %s: %v, should be %v", m, x.On(m), anew.On(m))
		}
	}
	return ""
}
