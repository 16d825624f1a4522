package topology

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pagurus/act/numa"
	"pagurus/act/numa/recorded"
	"pagurus/fleet"
)

const gib = 1 << 30

var hpc = fleet.Tune{NUMA: true, Huge: true, Pin: true}

// machine reads each machine once, which is hundreds of files. The nodes are the caller's own.
func machine(t *testing.T, name string) fleet.Topology {
	t.Helper()
	m, known := seen[name]
	if !known {
		var err error
		if m, err = numa.Read(recorded.Machine(t, name)); err != nil {
			t.Fatal(err)
		}
		seen[name] = m
	}
	m.Nodes = slices.Clone(m.Nodes)
	return m
}

var seen = map[string]fleet.Topology{}

// said describes a shape: sockets, cores, threads, then CPUs of each node.
func said(s fleet.Shape) string {
	text := fmt.Sprintf("%ds%dc%dt", s.Sockets, s.Cores, s.Threads)
	for _, n := range s.Nodes {
		text += fmt.Sprintf(" %d", n.CPUs)
	}
	return text
}

func TestAGuestMirrorsThePartThatItGets(t *testing.T) {
	for _, c := range []struct {
		machine string
		need    fleet.Resources
		want    string
	}{
		{"1n2c", fleet.Resources{CPUs: 1, MemoryBytes: gib}, "1s1c1t 1"},
		{"1n2c", fleet.Resources{CPUs: 2, MemoryBytes: gib}, "1s2c1t 2"},
		{"1n2c", fleet.Resources{CPUs: 5, MemoryBytes: gib}, "1s5c1t 5"}, // more than the host has
		// A node with several sockets is mirrored by one; with more CPUs than cores
		// threads are used.
		{"1n4s2c2t", fleet.Resources{CPUs: 8, MemoryBytes: 8 * gib}, "1s8c1t 8"},
		{"1n4s2c2t", fleet.Resources{CPUs: 16, MemoryBytes: 8 * gib}, "1s8c2t 16"},
		{"2n6c2t", fleet.Resources{CPUs: 4, MemoryBytes: 4 * gib}, "1s4c1t 4"},
		{"2n6c2t", fleet.Resources{CPUs: 12, MemoryBytes: 4 * gib}, "2s6c1t 6 6"},
		{"2n6c2t", fleet.Resources{CPUs: 24, MemoryBytes: 30 * gib}, "2s6c2t 12 12"},
		{"2n6c2t", fleet.Resources{CPUs: 4, MemoryBytes: 30 * gib}, "2s2c1t 2 2"}, // one node has too little memory
		{"2n6c2t", fleet.Resources{CPUs: 7, MemoryBytes: gib}, "1s7c1t 4 3"},      // no whole sockets
		{"4n10c", fleet.Resources{CPUs: 40, MemoryBytes: 64 * gib}, "4s10c1t 10 10 10 10"},
		{"4n10c", fleet.Resources{CPUs: 20, MemoryBytes: 64 * gib}, "2s10c1t 10 10"},
		{"8n6c", fleet.Resources{CPUs: 48, MemoryBytes: 64 * gib}, "4s12c1t 6 6 6 6 6 6 6 6"},
		{"8n6c", fleet.Resources{CPUs: 12, MemoryBytes: 16 * gib}, "1s12c1t 6 6"}, // two nodes of one socket
		{"8n-odd", fleet.Resources{CPUs: 4, MemoryBytes: gib}, "1s4c1t 2 1 1"},    // only nodes with memory and cores
		{"8n-odd", fleet.Resources{CPUs: 1, MemoryBytes: 20 * gib}, "1s1c1t 1"},
	} {
		s := Shape(machine(t, c.machine), c.need, hpc, nil)
		if got := said(s); got != c.want {
			t.Errorf("%d CPUs and %d GiB of %s: %s, want %s", c.need.CPUs, c.need.MemoryBytes/gib, c.machine, got, c.want)
		}
	}
}

// The two nearest of eight nodes are chosen, and the guest sees their distance.
func TestNodesThatAreNearAreChosen(t *testing.T) {
	host := machine(t, "8n6c")
	need := fleet.Resources{CPUs: 12, MemoryBytes: 8 * gib}
	s := Shape(host, need, hpc, nil)
	if !reflect.DeepEqual(s.Nodes[0].Distances, []int{10, 16}) {
		t.Errorf("%+v", s)
	}
	// Node 0 has a full neighbour: the next at the same distance is chosen.
	var taken []int
	for cpu := 6; cpu < 12; cpu++ {
		taken = append(taken, cpu)
	}
	l := Fit(host, s, need, hpc, Taken{Pins: taken})
	if len(l.Nodes) != 2 || l.Nodes[0].Hosts[0] == 1 || l.Nodes[1].Hosts[0] == 1 {
		t.Errorf("%+v", l)
	}
	for _, p := range l.Pins {
		if len(p) != 1 || slices.Contains(taken, p[0]) {
			t.Errorf("pinned to %v", p)
		}
	}
}

func TestHugePagesAreWhatTheHostCanGive(t *testing.T) {
	host := machine(t, "4n10c")
	for _, c := range []struct {
		memory int64
		page   int64
		note   string
	}{
		{4 * gib, gib, ""},               // node 0 has four left
		{gib + 512<<20, 2 << 20, ""},     // not a whole page
		{40 * gib, 0, "(transparent)"},   // more than all pages
		{gib + 4096, 0, "(transparent)"}, // not a multiple of any size
	} {
		need := fleet.Resources{CPUs: 10, MemoryBytes: c.memory}
		l := Fit(host, Shape(host, need, hpc, nil), need, hpc, Taken{})
		if l.Nodes[0].PageBytes != c.page || !strings.Contains(strings.Join(l.Notes, " "), c.note) {
			t.Errorf("%d bytes: %+v", c.memory, l)
		}
	}
	small := machine(t, "1n2c")
	small.Transparent = false
	need := fleet.Resources{CPUs: 1, MemoryBytes: gib}
	if l := Fit(small, Shape(small, need, hpc, nil), need, hpc, Taken{}); l.Nodes[0].PageBytes != 0 || !strings.Contains(l.Notes[0], "small ones") {
		t.Errorf("%+v", l)
	}
	// Two nodes of a guest on one host node do not get the same pages.
	one := fleet.Topology{Nodes: []fleet.Node{{MemoryBytes: 64 * gib, Cores: host.Nodes[0].Cores, Huge: []fleet.HugePages{{SizeBytes: gib, Total: 3, Free: 3}}}}}
	two := fleet.Shape{Sockets: 2, Cores: 1, Threads: 1, Nodes: []fleet.ShapeNode{{CPUs: 1, MemoryBytes: 2 * gib}, {CPUs: 1, MemoryBytes: 2 * gib}}}
	if l := Fit(one, two, fleet.Resources{CPUs: 2, MemoryBytes: 4 * gib}, hpc, Taken{}); l.Nodes[0].PageBytes != gib || l.Nodes[1].PageBytes != 0 {
		t.Errorf("%+v", l)
	}
}

// Guests shaped by every machine are placed on every other, pinned one to one where
// possible, and never on missing CPUs or nodes.
func TestAGuestGoesToHostsOfOtherShapes(t *testing.T) {
	names := []string{"1n2c", "1n4s2c2t", "2n6c2t", "4n10c", "8n6c", "8n-odd"}
	all := map[string]fleet.Topology{}
	for _, name := range names {
		all[name] = machine(t, name)
	}
	for _, from := range names {
		for _, to := range names {
			for _, cpus := range []int{1, 2, 4, 12, 48} {
				need := fleet.Resources{CPUs: cpus, MemoryBytes: 8 * gib}
				host := all[to]
				s := Shape(all[from], need, hpc, nil)
				checkLayout(t, host, s, need, Fit(host, s, need, hpc, Taken{}), nil)
			}
		}
	}
	wide := Shape(machine(t, "8n6c"), fleet.Resources{CPUs: 48, MemoryBytes: 32 * gib}, hpc, nil)
	l := Fit(machine(t, "2n6c2t"), wide, fleet.Resources{CPUs: 48, MemoryBytes: 32 * gib}, hpc, Taken{})
	notes := strings.Join(l.Notes, "; ")
	if !strings.Contains(notes, "some share one") || !strings.Contains(notes, "not pinned one to one") {
		t.Errorf("the notes are %q", notes)
	}
}

// failer is the common part of tests and properties.
type failer interface {
	Helper()
	Errorf(string, ...any)
}

// checkLayout checks the invariants of layouts.
func checkLayout(t failer, host fleet.Topology, s fleet.Shape, need fleet.Resources, l fleet.Layout, taken []int) {
	t.Helper()
	if s.Sockets*s.Cores*s.Threads != need.CPUs {
		t.Errorf("%s is not %d CPUs", said(s), need.CPUs)
	}
	cpus, memory := 0, int64(0)
	for _, n := range s.Nodes {
		cpus, memory = cpus+n.CPUs, memory+n.MemoryBytes
		if n.CPUs < 1 || n.MemoryBytes < 0 {
			t.Errorf("a node has %+v", n)
		}
	}
	if len(s.Nodes) > 0 && (cpus != need.CPUs || memory != need.MemoryBytes) {
		t.Errorf("the nodes have %d CPUs and %d bytes: %+v", cpus, memory, s)
	}
	known := map[int]bool{}
	nodes := map[int]bool{}
	for _, n := range host.Nodes {
		nodes[n.ID] = true
		for _, c := range n.Cores {
			for _, cpu := range c.CPUs {
				known[cpu] = true
			}
		}
	}
	if len(l.Pins) > 0 && len(l.Pins) != need.CPUs || len(s.Nodes) > 0 && len(l.Nodes) != len(s.Nodes) {
		t.Errorf("%d pins and %d nodes: %+v", len(l.Pins), len(l.Nodes), l)
	}
	alone := map[int]bool{}
	for _, p := range l.Pins {
		for _, cpu := range p {
			if !known[cpu] {
				t.Errorf("pinned to CPU %d, which is not there", cpu)
			}
		}
		if len(p) == 1 && !strings.Contains(strings.Join(l.Notes, " "), "not pinned one to one") {
			if alone[p[0]] || slices.Contains(taken, p[0]) {
				t.Errorf("CPU %d is given twice: %+v", p[0], l)
			}
			alone[p[0]] = true
		}
	}
	for _, cpu := range l.Rest {
		if !known[cpu] || alone[cpu] || slices.Contains(taken, cpu) {
			t.Errorf("the rest runs on %v, pinned are %v, taken %v", l.Rest, l.Pins, taken)
		}
	}
	for _, n := range l.Nodes {
		for _, h := range n.Hosts {
			if !nodes[h] {
				t.Errorf("memory is on node %d, which is not there", h)
			}
		}
	}
}

// machines of any shape, including impossible ones.
func machines(r *rapid.T) (m fleet.Topology) {
	cpu := 0
	for i := range rapid.IntRange(0, 5).Draw(r, "nodes") {
		n := fleet.Node{ID: i * rapid.IntRange(1, 3).Draw(r, "gap"), MemoryBytes: int64(rapid.IntRange(0, 32).Draw(r, "memory")) * gib}
		for range rapid.IntRange(0, 6).Draw(r, "cores") {
			c := fleet.Core{Socket: rapid.IntRange(0, 2).Draw(r, "socket")}
			for range rapid.IntRange(1, 3).Draw(r, "threads") {
				c.CPUs = append(c.CPUs, cpu)
				cpu++
			}
			n.Cores = append(n.Cores, c)
		}
		m.Nodes = append(m.Nodes, n)
	}
	return m
}

func TestAnyGuestFitsOnAnyHostSomehow(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		from, to := machines(r), machines(r)
		need := fleet.Resources{CPUs: rapid.IntRange(1, 40).Draw(r, "cpus"), MemoryBytes: int64(rapid.IntRange(1, 64<<10).Draw(r, "mebibytes")) << 20}
		tune := fleet.Tune{NUMA: rapid.Bool().Draw(r, "numa"), Huge: rapid.Bool().Draw(r, "huge"), Pin: rapid.Bool().Draw(r, "pin")}
		taken := rapid.SliceOfDistinct(rapid.IntRange(0, 40), rapid.ID[int]).Draw(r, "taken")
		s := Shape(from, need, tune, taken)
		others := Taken{Pins: taken, Rests: rapid.SliceOf(rapid.IntRange(0, 40)).Draw(r, "rests"), Bound: map[int]int64{}}
		for range rapid.IntRange(0, 4).Draw(r, "bound") {
			others.Bound[rapid.IntRange(0, 6).Draw(r, "node")] = int64(rapid.IntRange(0, 40).Draw(r, "gibibytes")) * gib
		}
		l := Fit(to, s, need, tune, others)
		checkLayout(r, to, s, need, l, taken)
		if again := Fit(to, s, need, tune, others); !reflect.DeepEqual(l, again) {
			r.Errorf("%+v, then %+v", l, again)
		}
		if !tune.Pin && len(l.Pins) > 0 {
			r.Errorf("pinned without a request: %+v", l)
		}
	})
}

// Four CPUs for three nodes with one core each, most with two threads: whole cores for
// the first nodes would leave none for the last.
func TestEveryNodeHasACPU(t *testing.T) {
	host := fleet.Topology{Nodes: []fleet.Node{
		{ID: 0, MemoryBytes: gib, Cores: []fleet.Core{{CPUs: []int{0}}}},
		{ID: 1, MemoryBytes: gib, Cores: []fleet.Core{{CPUs: []int{1, 2}}}},
		{ID: 2, MemoryBytes: gib, Cores: []fleet.Core{{CPUs: []int{3, 4, 5}}}},
	}}
	need := fleet.Resources{CPUs: 4, MemoryBytes: gib}
	s := Shape(host, need, hpc, nil)
	for _, n := range s.Nodes {
		if n.CPUs == 0 {
			t.Errorf("%+v", s)
		}
	}
	checkLayout(t, host, s, need, Fit(host, s, need, hpc, Taken{}), nil)
}

// Memory is divided so that huge pages still fit.
func TestMemoryIsDividedInWholePages(t *testing.T) {
	s := Shape(machine(t, "4n10c"), fleet.Resources{CPUs: 12, MemoryBytes: 8 * gib}, hpc, nil)
	if len(s.Nodes) != 2 || s.Nodes[0].MemoryBytes != 4*gib || s.Nodes[1].MemoryBytes != 4*gib {
		t.Errorf("%+v", s)
	}
}
