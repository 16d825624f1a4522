package topology

import (
	"fmt"
	"slices"

	"pagurus/fleet"
)

// kept is the share of a node's memory that a guest's kernel may use and not report: its
// code, and page descriptions.
const kept = 0.25

// Differs lists the differences between a guest's shape and what it sees.
func Differs(want fleet.Shape, seen fleet.Topology) (all []string) {
	sockets, cores, cpus := map[int]bool{}, 0, 0
	for _, n := range seen.Nodes {
		for _, c := range n.Cores {
			sockets[c.Socket], cores, cpus = true, cores+1, cpus+len(c.CPUs)
		}
	}
	for _, f := range []struct {
		what       string
		seen, want int
	}{
		{"sockets", len(sockets), want.Sockets},
		{"cores", cores, want.Sockets * want.Cores},
		{"CPUs", cpus, want.Sockets * want.Cores * want.Threads},
		{"nodes", len(seen.Nodes), max(1, len(want.Nodes))},
	} {
		if f.seen != f.want {
			all = append(all, fmt.Sprintf("%s: %d, and not %d", f.what, f.seen, f.want))
		}
	}
	if want.CPU != "" && !seen.HasCPU(want.CPU) {
		all = append(all, fmt.Sprintf("its CPUs are %s, and not %s", orUnknown(seen.Level), want.CPU))
	}
	if len(seen.Nodes) != len(want.Nodes) {
		return all
	}
	for i, w := range want.Nodes {
		all = append(all, nodeDiffers(i, w, seen.Nodes[i])...)
	}
	return all
}

func orUnknown(level string) string {
	if level == "" {
		return "of an unknown level"
	}
	return level
}

func nodeDiffers(i int, want fleet.ShapeNode, seen fleet.Node) (all []string) {
	cpus := 0
	for _, c := range seen.Cores {
		cpus += len(c.CPUs)
	}
	if cpus != want.CPUs {
		all = append(all, fmt.Sprintf("CPUs of node %d: %d, and not %d", i, cpus, want.CPUs))
	}
	if least := want.MemoryBytes - int64(kept*float64(want.MemoryBytes)); seen.MemoryBytes < least || seen.MemoryBytes > want.MemoryBytes {
		all = append(all, fmt.Sprintf("memory of node %d: %d MiB, and not %d", i, seen.MemoryBytes>>20, want.MemoryBytes>>20))
	}
	if len(want.Distances) > 0 && !slices.Equal(want.Distances, seen.Distances) {
		all = append(all, fmt.Sprintf("distances of node %d: %v, and not %v", i, seen.Distances, want.Distances))
	}
	return all
}
