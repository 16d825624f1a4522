package topology

import (
	"cmp"
	"fmt"
	"slices"

	"pagurus/fleet"
)

// Fit places a guest's shape on any host, beside other guests. Parts that cannot be
// provided are left out, with notes.
func Fit(host fleet.Topology, s fleet.Shape, need fleet.Resources, tune fleet.Tune, taken Taken) (l fleet.Layout) {
	nodes := s.Nodes
	if len(nodes) == 0 {
		nodes = []fleet.ShapeNode{{CPUs: need.CPUs, MemoryBytes: need.MemoryBytes}}
	}
	f := fitting{host: host, tune: tune, others: taken, free: shares(host, taken.Pins)}
	if len(f.free) == 0 {
		l.Notes = append(l.Notes, "this host has not reported its topology: nothing is mirrored, bound or pinned")
		l.Nodes = make([]fleet.LayoutNode, len(nodes))
		return l
	}
	crowded := false
	for _, n := range nodes {
		at := f.nextNode(n)
		crowded = crowded || tune.NUMA && slices.Contains(f.at, at)
		f.at = append(f.at, at)
		l.Nodes = append(l.Nodes, f.place(at, n.MemoryBytes))
		if tune.Pin {
			l.Pins = append(l.Pins, f.pin(at, n.CPUs, s.Threads)...)
		}
	}
	if crowded {
		f.say("the guest has %d nodes and this host has fewer for it: some share one", len(nodes))
	}
	if tune.Pin {
		l.Rest = f.rest()
	}
	l.Notes = append(l.Notes, f.notes...)
	return l
}

// fitting is a layout in progress. Nodes are indices of the host's.
type fitting struct {
	host   fleet.Topology
	tune   fleet.Tune
	others Taken   // used by other guests
	own    Taken   // used by this one so far
	free   []share // cores without other guests' pins
	at     []int   // by placed guest node: the host's node
	busy   []int   // CPUs for guest CPUs without one of their own
	notes  []string
}

func (f *fitting) say(format string, args ...any) {
	note := fmt.Sprintf(format, args...)
	if !slices.Contains(f.notes, note) {
		f.notes = append(f.notes, note)
	}
}

// nextNode chooses the host node for the guest's next node. It prefers nodes that the
// guest does not use yet, then enough memory, cores and pages, then a short distance to
// the earlier ones and few other guests.
func (f *fitting) nextNode(n fleet.ShapeNode) int {
	used := func(s share) (times int) {
		for _, at := range f.at {
			if at == s.node {
				times++
			}
		}
		return times
	}
	plain := func(s share) int {
		if f.tune.Huge && f.page(f.pool(s.node), n.MemoryBytes) == 0 {
			return 1
		}
		return 0
	}
	short := func(s share) int64 {
		if f.tune.Huge && plain(s) == 0 {
			return 0
		}
		return max(0, n.MemoryBytes-f.room(s.node))
	}
	lacks := func(s share) int { return max(0, n.CPUs-len(s.cores)) }
	meets := func(s share) (cores int) {
		for _, c := range s.cores {
			cores += 1 - f.resting(c)
		}
		return max(0, n.CPUs-cores)
	}
	reach := func(s share) (sum int) {
		for _, other := range f.at {
			sum += distance(f.host, s.node, other)
		}
		return sum
	}
	held := func(s share) int64 { return f.others.boundTo(f.host.Nodes[s.node].ID) }
	return slices.MinFunc(f.free, func(a, b share) int {
		return cmp.Or(cmp.Compare(used(a), used(b)), cmp.Compare(short(a), short(b)), cmp.Compare(lacks(a), lacks(b)),
			cmp.Compare(plain(a), plain(b)), cmp.Compare(meets(a), meets(b)), cmp.Compare(reach(a), reach(b)),
			cmp.Compare(held(a), held(b)), cmp.Compare(a.node, b.node))
	}).node
}

// place chooses where the memory of a guest's node is. It is bound to a host node only if
// it fits: the kernel kills a process bound to a full node.
func (f *fitting) place(at int, memory int64) fleet.LayoutNode {
	node := f.host.Nodes[at]
	part := fleet.LayoutNode{MemoryBytes: memory}
	if f.tune.Huge {
		if part.PageBytes = f.page(f.pool(at), memory); part.PageBytes == 0 {
			f.sayPlain(memory)
		}
	}
	switch {
	case f.tune.NUMA && (part.PageBytes > 0 || memory <= f.room(at)):
		part.Hosts = []int{node.ID}
	case f.tune.NUMA:
		f.say("node %d of this host has %d MiB that no guest is bound to and no huge page has, and not %d: memory is bound to no node",
			node.ID, max(0, f.room(at))>>20, memory>>20)
	}
	f.own.addMemory(part)
	return part
}

// room is a node's memory in small pages that is not bound.
func (f *fitting) room(at int) int64 {
	n := f.host.Nodes[at]
	left := n.MemoryBytes - f.others.Bound[n.ID] - f.own.Bound[n.ID]
	for _, h := range n.Huge {
		left -= int64(h.Total) * h.SizeBytes
	}
	return left
}

// pool is the ID of the node whose huge pages are used for memory at a host node.
func (f *fitting) pool(at int) int {
	if f.tune.NUMA {
		return f.host.Nodes[at].ID
	}
	return anyNode
}

// page returns the largest reserved page size that the memory is a multiple of; 0: none.
func (f *fitting) page(node int, memory int64) int64 {
	for _, size := range f.sizes() {
		if memory%size == 0 && int64(f.left(Pool{node, size})) >= memory/size {
			return size
		}
	}
	return 0
}

// left is how many huge pages are not promised. It is unknown whether the free pages
// include other guests' promised ones, which may be taken before or after the sample. So
// both the free and the unpromised pages limit it. With other users of pages it may still
// be too many; then the guest starts without.
func (f *fitting) left(p Pool) int {
	here, all, total := 0, 0, 0
	for _, n := range f.host.Nodes {
		for _, h := range n.Huge {
			if h.SizeBytes != p.SizeBytes {
				continue
			}
			free := max(0, min(h.Free, h.Total-f.others.Pages[Pool{n.ID, h.SizeBytes}]))
			all, total = all+free, total+h.Total
			if n.ID == p.Node {
				here += free
			}
		}
	}
	all = min(all, total-f.others.pages(p.SizeBytes)) - f.own.pages(p.SizeBytes)
	if p.Node == anyNode {
		return all
	}
	return min(all, here-f.own.Pages[p])
}

func (f *fitting) sayPlain(memory int64) {
	if f.host.Transparent {
		f.say("too few huge pages are set aside on this host for %d MiB: the kernel makes what it can (transparent)", memory>>20)
	} else {
		f.say("too few huge pages are set aside on this host for %d MiB, and its kernel makes none: memory is in small ones", memory>>20)
	}
}

// sizes are the host's reserved page sizes, largest first.
func (f *fitting) sizes() (all []int64) {
	for _, n := range f.host.Nodes {
		for _, h := range n.Huge {
			if !slices.Contains(all, h.SizeBytes) {
				all = append(all, h.SizeBytes)
			}
		}
	}
	slices.SortFunc(all, func(a, b int64) int { return cmp.Compare(b, a) })
	return all
}

// pin assigns cores of a node to the guest's CPUs, one to one, or two threads of a core
// if the guest sees two. Cores for other guests' remaining threads come last. If there
// are too few cores, all CPUs may use the whole node.
func (f *fitting) pin(at, cpus, threads int) (pins [][]int) {
	var all []int
	var free []fleet.Core
	node := f.host.Nodes[at]
	for _, c := range node.Cores {
		all = append(all, c.CPUs...)
		if !f.pinned(c) {
			free = append(free, c)
		}
	}
	slices.Sort(all)
	slices.SortStableFunc(free, func(a, b fleet.Core) int { return cmp.Compare(f.resting(a), f.resting(b)) })
	whole := threads > 1 && !slices.ContainsFunc(free, func(c fleet.Core) bool { return len(c.CPUs) < threads })
	if whole && len(free)*threads >= cpus {
		for i := range cpus {
			pins = append(pins, []int{free[i/threads].CPUs[i%threads]})
		}
	} else if len(free) >= cpus {
		for _, c := range free[:cpus] {
			pins = append(pins, []int{c.CPUs[0]})
		}
	}
	if pins == nil {
		f.say("node %d of this host has %d free cores for %d CPUs: they are not pinned one to one, but kept on it", node.ID, len(free), cpus)
		for range cpus {
			pins = append(pins, all)
		}
		f.busy = append(f.busy, all...)
		return pins
	}
	met := 0
	for _, p := range pins {
		f.own.Pins = append(f.own.Pins, p[0])
		if slices.Contains(f.others.Rests, p[0]) {
			met++
		}
	}
	if met > 0 {
		f.say("node %d of this host has too few cores: input and output of other guests may take time of %d CPUs of this one", node.ID, met)
	}
	return pins
}

// pinned reports whether a CPU of any guest is pinned to a core.
func (f *fitting) pinned(c fleet.Core) bool {
	return slices.ContainsFunc(c.CPUs, func(cpu int) bool {
		return slices.Contains(f.others.Pins, cpu) || slices.Contains(f.own.Pins, cpu)
	})
}

// resting is 1 for a core used by another guest's remaining threads, otherwise 0.
func (f *fitting) resting(c fleet.Core) int {
	if slices.ContainsFunc(c.CPUs, func(cpu int) bool { return slices.Contains(f.others.Rests, cpu) }) {
		return 1
	}
	return 0
}

// rest returns the cores for a guest's remaining threads: unpinned ones of its nodes, or
// else of the host. It takes the last half of them, because later guests' CPUs are pinned
// to the others first.
func (f *fitting) rest() []int {
	of := func(nodes []int) (cpus []int) {
		for _, i := range nodes {
			var free []fleet.Core
			for _, c := range f.host.Nodes[i].Cores {
				if !f.pinned(c) && !slices.ContainsFunc(c.CPUs, func(cpu int) bool { return slices.Contains(f.busy, cpu) }) {
					free = append(free, c)
				}
			}
			for _, c := range free[len(free)/2:] {
				cpus = append(cpus, c.CPUs...)
			}
		}
		slices.Sort(cpus)
		return slices.Compact(cpus)
	}
	if own := of(f.at); len(own) > 0 {
		return own
	}
	var every []int
	for i := range f.host.Nodes {
		every = append(every, i)
	}
	if any := of(every); len(any) > 0 {
		return any
	}
	whose := "its CPUs"
	if len(f.others.Pins) > 0 {
		whose += ", and of other guests'"
	}
	f.say("no core is left for threads other than the guest's CPUs: input and output take time of %s", whose)
	return nil
}
