package topology

import (
	"slices"
	"testing"

	"pagurus/fleet"
)

func TestDiffers(t *testing.T) {
	const mib = 1 << 20
	want := fleet.Shape{Sockets: 2, Cores: 1, Threads: 2, CPU: "x86-64-v2", Nodes: []fleet.ShapeNode{
		{CPUs: 2, MemoryBytes: 128 * mib, Distances: []int{10, 21}}, {CPUs: 2, MemoryBytes: 128 * mib, Distances: []int{21, 10}},
	}}
	same := func() fleet.Topology {
		return fleet.Topology{Level: "x86-64-v3", Nodes: []fleet.Node{
			{MemoryBytes: 110 * mib, Distances: []int{10, 21}, Cores: []fleet.Core{{Socket: 0, CPUs: []int{0, 1}}}},
			{MemoryBytes: 128 * mib, Distances: []int{21, 10}, Cores: []fleet.Core{{Socket: 1, CPUs: []int{2, 3}}}},
		}}
	}
	for name, c := range map[string]struct {
		change func(*fleet.Topology)
		want   []string
	}{
		"the same":    {func(*fleet.Topology) {}, nil},
		"flat":        {func(t *fleet.Topology) { t.Nodes = t.Nodes[:1] }, []string{"sockets: 1, and not 2", "cores: 1, and not 2", "CPUs: 2, and not 4", "nodes: 1, and not 2"}},
		"less memory": {func(t *fleet.Topology) { t.Nodes[1].MemoryBytes = 64 * mib }, []string{"memory of node 1: 64 MiB, and not 128"}},
		"old":         {func(t *fleet.Topology) { t.Level = "x86-64-v1" }, []string{"its CPUs are x86-64-v1, and not x86-64-v2"}},
		"far":         {func(t *fleet.Topology) { t.Nodes[0].Distances = []int{10, 20} }, []string{"distances of node 0: [10 20], and not [10 21]"}},
		"no threads": {func(t *fleet.Topology) {
			t.Nodes[0].Cores = []fleet.Core{{Socket: 0, CPUs: []int{0}}, {Socket: 0, CPUs: []int{1}}}
		}, []string{"cores: 3, and not 2"}},
		"elsewhere": {func(t *fleet.Topology) {
			t.Nodes[0].Cores[0].CPUs, t.Nodes[1].Cores[0].CPUs = []int{0, 1, 2}, []int{3}
		}, []string{"CPUs of node 0: 3, and not 2", "CPUs of node 1: 1, and not 2"}},
	} {
		seen := same()
		c.change(&seen)
		if got := Differs(want, seen); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := Differs(fleet.Shape{Sockets: 1, Cores: 1, Threads: 1}, fleet.Topology{Nodes: []fleet.Node{{Cores: []fleet.Core{{CPUs: []int{0}}}}}}); got != nil {
		t.Errorf("a guest without nodes: %q", got)
	}
}
