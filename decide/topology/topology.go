// Package topology decides a guest's shape and layout. The shape mirrors the guest's part
// of the host, and never changes. The layout places it on a host, and is made again on
// every host it moves to, of whatever topology.
//
// It must not know how they are put into effect. Its tests use recorded machines with
// one, two, four and eight nodes.
package topology

import (
	"cmp"
	"slices"

	"pagurus/fleet"
)

// Default distances for a machine that does not report them.
const (
	localDistance = 10
	far           = 20
)

// mebi is the unit of a node's memory: pages of 2 MiB must fit.
const mebi = 2 << 20

// Shape returns the shape for a guest on a host. taken are the host's CPUs with other
// guests' pins. A host without topology is mirrored by one node.
func Shape(host fleet.Topology, need fleet.Resources, tune fleet.Tune, taken []int) fleet.Shape {
	s := fleet.Shape{Sockets: 1, Cores: need.CPUs, Threads: 1}
	parts := part(host, need, taken)
	if !tune.NUMA || len(parts) == 0 {
		return s
	}
	counts, threads := divide(parts, need.CPUs)
	if need.CPUs%threads == 0 {
		s.Threads = threads
	}
	s.Cores = need.CPUs / s.Threads
	if sockets := sockets(parts); len(sockets) > 1 && even(parts, counts, s.Threads, len(sockets)) {
		s.Sockets, s.Cores = len(sockets), s.Cores/len(sockets)
	}
	left := need.MemoryBytes
	for i, p := range parts {
		memory := need.MemoryBytes / mebi * int64(counts[i]) / int64(need.CPUs) * mebi
		if i == len(parts)-1 {
			memory = left
		}
		left -= memory
		node := fleet.ShapeNode{CPUs: counts[i], MemoryBytes: memory}
		for _, q := range parts {
			node.Distances = append(node.Distances, distance(host, p.node, q.node))
		}
		s.Nodes = append(s.Nodes, node)
	}
	if len(s.Nodes) == 1 {
		s.Nodes[0].Distances = nil
	}
	return s
}

// For returns the shape of a job's guest that starts on a host; nil: the job is not
// tuned, or the kind has no shape. Its CPU level is one that all hosts have, so that no
// move fails because of it, unless the cluster's rules, or the host's agent, are told which CPU guests get.
func For(hosts map[fleet.HostID]fleet.Host, at fleet.HostID, kind fleet.Kind, spec fleet.JobSpec, ruled string) *fleet.Shape {
	if !spec.Tune.On() || !kind.Traits().Tunable {
		return nil
	}
	var all []fleet.Topology
	for _, h := range hosts {
		if t := h.Facts.Topology; t != nil {
			all = append(all, *t)
		}
	}
	var host fleet.Topology
	if t := hosts[at].Facts.Topology; t != nil {
		host = *t
	}
	s := Shape(host, spec.Need, spec.Tune, nil)
	can := hosts[at].Facts.Abilities[kind]
	switch model := cmp.Or(ruled, can.Model); {
	case can.Accelerator != fleet.KVM: // emulated CPUs are the same everywhere
	case ruled == "" && (model == "" || model == fleet.HostCPU):
		s.CPU = fleet.CommonCPU(all)
	case fleet.IsCPULevel(model): // as it is wanted
		s.CPU = model
	}
	return &s
}

// share is a node of the host with the cores that a guest may use.
type share struct {
	node  int // index into the host's nodes
	cores []fleet.Core
}

// part chooses a guest's nodes: as few as suffice, as near to each other and with as many
// free cores as possible. None: no node has both memory and cores.
func part(host fleet.Topology, need fleet.Resources, taken []int) (best []share) {
	all := shares(host, taken)
	for _, first := range all {
		near := slices.Clone(all)
		slices.SortStableFunc(near, func(a, b share) int {
			return cmp.Or(cmp.Compare(distance(host, first.node, a.node), distance(host, first.node, b.node)), cmp.Compare(a.node, b.node))
		})
		var chosen []share
		cores, memory := 0, int64(0)
		for _, s := range near {
			chosen = append(chosen, s)
			cores, memory = cores+len(s.cores), memory+host.Nodes[s.node].MemoryBytes
			if cores >= need.CPUs && memory >= need.MemoryBytes {
				break
			}
		}
		if best == nil || better(host, chosen, best) {
			best = chosen
		}
	}
	// At most one node for each CPU.
	best = best[:min(len(best), max(need.CPUs, 1))]
	slices.SortFunc(best, func(a, b share) int { return cmp.Compare(a.node, b.node) })
	return best
}

func better(host fleet.Topology, a, b []share) bool {
	spread := func(all []share) (sum int) {
		for _, p := range all {
			for _, q := range all {
				sum += distance(host, p.node, q.node)
			}
		}
		return sum
	}
	free := func(all []share) (sum int) {
		for _, p := range all {
			sum += len(p.cores)
		}
		return sum
	}
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(spread(a), spread(b)), cmp.Compare(free(b), free(a))) < 0
}

// shares are the nodes with memory and cores, with their free cores. If all are taken
// they are shared.
func shares(host fleet.Topology, taken []int) (all []share) {
	var full []share
	for i, n := range host.Nodes {
		if n.MemoryBytes == 0 || len(n.Cores) == 0 {
			continue
		}
		free := slices.DeleteFunc(slices.Clone(n.Cores), func(c fleet.Core) bool {
			return slices.ContainsFunc(c.CPUs, func(cpu int) bool { return slices.Contains(taken, cpu) })
		})
		full = append(full, share{i, n.Cores})
		if len(free) > 0 {
			all = append(all, share{i, free})
		}
	}
	if len(all) == 0 {
		return full
	}
	return all
}

// divide distributes CPUs over nodes in proportion to their cores, and chooses the
// threads used for each core. That is one, unless there are too few cores, and enough
// CPUs for a whole core on each node.
func divide(parts []share, cpus int) (counts []int, threads int) {
	counts, threads = make([]int, len(parts)), 1
	cores, all := 0, 0
	for _, p := range parts {
		cores += len(p.cores)
		for _, c := range p.cores {
			all += len(c.CPUs)
		}
	}
	if cpus > cores && all >= 2*cores && cpus >= 2*len(parts) {
		threads = 2
	}
	// In turn, a whole core at a time, while a node has cores left; the rest is
	// distributed in turn.
	for given := 0; given < cpus; {
		before := given
		for i, p := range parts {
			if step := min(threads, cpus-given); counts[i]+step <= len(p.cores)*threads {
				counts[i] += step
				given += step
			}
		}
		if given == before {
			for i := 0; given < cpus; i, given = i+1, given+1 {
				counts[i%len(parts)]++
			}
		}
	}
	return counts, threads
}

// sockets are the parts' sockets.
func sockets(parts []share) (all []int) {
	for _, p := range parts {
		for _, c := range p.cores {
			if !slices.Contains(all, c.Socket) {
				all = append(all, c.Socket)
			}
		}
	}
	return all
}

// even reports whether all sockets would have the same number of CPUs, in whole cores and
// whole nodes: then the guest can see them.
func even(parts []share, counts []int, threads, sockets int) bool {
	of := map[int]int{}
	for i, p := range parts {
		first := p.cores[0].Socket
		for _, c := range p.cores {
			if c.Socket != first {
				return false // a node with several sockets is mirrored by one
			}
		}
		of[first] += counts[i]
	}
	total := 0
	for _, n := range counts {
		total += n
	}
	for _, n := range of {
		if n*sockets != total || n%threads != 0 {
			return false
		}
	}
	return true
}

// distance is the distance of two nodes of a host, by index.
func distance(host fleet.Topology, a, b int) int {
	if d := host.Nodes[a].Distances; len(d) == len(host.Nodes) && d[b] > 0 {
		return d[b]
	}
	if a == b {
		return localDistance
	}
	return far
}
