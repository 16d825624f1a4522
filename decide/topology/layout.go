package topology

import (
	"cmp"
	"fmt"
	"slices"

	"pagurus/fleet"
)

// Fit puts a guest's shape on a host, whatever that is made of. Taken are CPUs
// that others are pinned to. What cannot be given is left out and said.
func Fit(host fleet.Topology, s fleet.Shape, need fleet.Resources, tune fleet.Tune, taken []int) (l fleet.Layout) {
	nodes := s.Nodes
	if len(nodes) == 0 {
		nodes = []fleet.ShapeNode{{CPUs: need.CPUs, MemoryBytes: need.MemoryBytes}}
	}
	at := seats(host, nodes, taken)
	if len(at) == 0 {
		l.Notes = append(l.Notes, "this host does not say what it is made of: nothing is mirrored, bound or pinned")
		l.Nodes = make([]fleet.LayoutNode, len(nodes))
		return l
	}
	f := fitting{host: host, taken: slices.Clone(taken), pages: map[[2]int64]int{}}
	crowded := false
	for i, n := range nodes {
		part := fleet.LayoutNode{}
		if tune.NUMA {
			part.Hosts = []int{host.Nodes[at[i]].ID}
			crowded = crowded || slices.Contains(at[:i], at[i])
		}
		if tune.Huge {
			part.PageBytes = f.page(at[i], n.MemoryBytes, tune.NUMA)
		}
		l.Nodes = append(l.Nodes, part)
		if tune.Pin {
			l.Pins = append(l.Pins, f.pin(at[i], n.CPUs, s.Threads)...)
		}
	}
	if crowded {
		f.say("the guest has %d nodes and this host has fewer for it: some share one", len(nodes))
	}
	if tune.Pin {
		l.Rest = f.rest(at)
	}
	l.Notes = append(l.Notes, f.notes...)
	return l
}

// fitting is a layout under way.
type fitting struct {
	host  fleet.Topology
	taken []int
	busy  []int            // kept to by CPUs that have none of their own
	pages map[[2]int64]int // pages promised so far, by node and size
	notes []string
}

func (f *fitting) say(format string, args ...any) {
	note := fmt.Sprintf(format, args...)
	if !slices.Contains(f.notes, note) {
		f.notes = append(f.notes, note)
	}
}

// seats gives each node of the guest one of the host: those with the most room
// for its CPUs, near to those of the nodes before it; only if there are fewer the
// same one twice. None: the host has no node with memory and cores.
func seats(host fleet.Topology, nodes []fleet.ShapeNode, taken []int) (at []int) {
	all := shares(host, taken)
	if len(all) == 0 {
		return nil
	}
	used := map[int]int{}
	for _, n := range nodes {
		slices.SortStableFunc(all, func(a, b share) int {
			reach := func(s share) (sum int) {
				for _, other := range at {
					sum += distance(host, s.node, other)
				}
				return sum
			}
			lacks := func(s share) int { return max(0, n.CPUs-len(s.cores)) }
			short := func(s share) int64 { return max(0, n.MemoryBytes-host.Nodes[s.node].MemoryBytes) }
			return cmp.Or(cmp.Compare(used[a.node], used[b.node]), cmp.Compare(short(a), short(b)), cmp.Compare(lacks(a), lacks(b)),
				cmp.Compare(reach(a), reach(b)), cmp.Compare(a.node, b.node))
		})
		at = append(at, all[0].node)
		used[all[0].node]++
	}
	return at
}

// page gives the largest pages set aside that the memory of a node can be made
// of; 0: there are none.
func (f *fitting) page(node int, memory int64, bound bool) int64 {
	for _, size := range f.sizes() {
		if memory%size != 0 {
			continue
		}
		free := 0
		for i, n := range f.host.Nodes {
			for _, h := range n.Huge {
				if h.SizeBytes == size && (!bound || i == node) {
					free += h.Free
				}
			}
		}
		key := [2]int64{size, -1}
		if bound {
			key[1] = int64(node)
		}
		if want := int(memory / size); free-f.pages[key] >= want {
			f.pages[key] += want
			return size
		}
	}
	if f.host.Transparent {
		f.say("too few huge pages are set aside on this host for %d MiB: the kernel makes what it can (transparent)", memory>>20)
	} else {
		f.say("too few huge pages are set aside on this host for %d MiB, and its kernel makes none: memory is in small ones", memory>>20)
	}
	return 0
}

// sizes are those of pages that the host sets aside, the largest first.
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

// pin gives CPUs of the guest cores of a node, one to one; two threads of a core
// where the guest sees two. Where there are too few, all may run on all of it.
func (f *fitting) pin(node, cpus, threads int) (pins [][]int) {
	var all []int
	var free []fleet.Core
	for _, c := range f.host.Nodes[node].Cores {
		all = append(all, c.CPUs...)
		if !slices.ContainsFunc(c.CPUs, func(cpu int) bool { return slices.Contains(f.taken, cpu) }) {
			free = append(free, c)
		}
	}
	slices.Sort(all)
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
		f.say("node %d of this host has %d free cores for %d CPUs: they are not pinned one to one, but kept on it", f.host.Nodes[node].ID, len(free), cpus)
		for range cpus {
			pins = append(pins, all)
		}
		f.busy = append(f.busy, all...)
		return pins
	}
	for _, p := range pins {
		f.taken = append(f.taken, p...)
	}
	return pins
}

// rest gives where all else of a guest runs: on cores of its nodes that nobody is
// pinned to, otherwise on such of the host.
func (f *fitting) rest(at []int) []int {
	of := func(nodes []int) (cpus []int) {
		for _, i := range nodes {
			for _, c := range f.host.Nodes[i].Cores {
				if !slices.ContainsFunc(c.CPUs, func(cpu int) bool { return slices.Contains(f.taken, cpu) || slices.Contains(f.busy, cpu) }) {
					cpus = append(cpus, c.CPUs...)
				}
			}
		}
		slices.Sort(cpus)
		return slices.Compact(cpus)
	}
	if own := of(at); len(own) > 0 {
		return own
	}
	var every []int
	for i := range f.host.Nodes {
		every = append(every, i)
	}
	if any := of(every); len(any) > 0 {
		return any
	}
	f.say("no core is left for what is not a CPU of the guest: input and output take time of its CPUs")
	return nil
}

// levels are those that CPU models of guests are made by, the least first.
var levels = []string{"x86-64-v1", "x86-64-v2", "x86-64-v3", "x86-64-v4"}

// Common is the highest level that all hosts have; empty: one says nothing of
// its CPUs.
func Common(hosts []fleet.Topology) string {
	least := len(levels)
	for _, h := range hosts {
		least = min(least, slices.Index(levels, h.Level))
	}
	if least < 0 || least == len(levels) {
		return ""
	}
	return levels[least]
}

// Holds reports whether a host has CPUs of a level.
func Holds(host fleet.Topology, level string) bool {
	return level == "" || slices.Index(levels, host.Level) >= slices.Index(levels, level) && slices.Contains(levels, level)
}
