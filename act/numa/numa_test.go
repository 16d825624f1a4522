package numa

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"pagurus/act/numa/recorded"
	"pagurus/fleet"
)

func TestThisMachineIsRead(t *testing.T) {
	m, err := Read("/")
	if err != nil {
		t.Fatal(err)
	}
	cpus, memory := 0, int64(0)
	for _, n := range m.Nodes {
		memory += n.MemoryBytes
		for _, c := range n.Cores {
			cpus += len(c.CPUs)
		}
	}
	if cpus < runtime.NumCPU() || memory < 1<<28 {
		t.Errorf("%d CPUs and %d bytes are in %+v", cpus, memory, m)
	}
	if runtime.GOARCH == "amd64" && m.Level == "" {
		t.Error("its CPUs have no level")
	}
}

func TestRecordedMachinesAreRead(t *testing.T) {
	for _, c := range []struct {
		name                 string
		nodes, cores, CPUs   int
		first, last, sockets int // node IDs
		level                string
	}{
		{"1n2c", 1, 2, 2, 0, 0, 1, "x86-64-v3"},
		{"1n4s2c2t", 1, 8, 16, 0, 0, 4, "x86-64-v1"},
		{"2n6c2t", 2, 12, 24, 0, 1, 2, "x86-64-v2"},
		{"4n10c", 4, 40, 40, 0, 3, 4, "x86-64-v2"},
		{"8n6c", 8, 48, 48, 0, 73, 4, "x86-64-v1"},
		{"8n-odd", 8, 10, 10, 0, 7, 6, "x86-64-v1"},
	} {
		m, err := Read(recorded.Machine(t, c.name))
		if err != nil {
			t.Fatal(err)
		}
		cores, cpus, sockets := 0, []int{}, map[int]bool{}
		for _, n := range m.Nodes {
			for _, core := range n.Cores {
				cores++
				cpus = append(cpus, core.CPUs...)
				sockets[core.Socket] = true
			}
		}
		slices.Sort(cpus)
		if len(m.Nodes) != c.nodes || cores != c.cores || len(slices.Compact(cpus)) != c.CPUs || len(sockets) != c.sockets || m.Level != c.level ||
			m.Nodes[0].ID != c.first || m.Nodes[c.nodes-1].ID != c.last || !m.Transparent {
			t.Errorf("%s is %+v", c.name, m)
		}
	}
}

// A kernel without nodes, and one without data on cores.
func TestAKernelThatKnowsOfNoNodes(t *testing.T) {
	dir := t.TempDir()
	if _, err := Read(dir); err == nil {
		t.Error("nothing was read")
	}
	for path, text := range map[string]string{"sys/devices/system/cpu/online": "0-2", "proc/meminfo": "MemTotal: 1024 kB"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m, err := Read(dir)
	if err != nil || len(m.Nodes) != 1 || len(m.Nodes[0].Cores) != 3 || m.Nodes[0].MemoryBytes != 1<<20 || m.Transparent {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestLevels(t *testing.T) {
	if Level(nil) != "" || Level([]string{"avx512f"}) != "" {
		t.Error("a CPU without the least has a level")
	}
	var all []string
	for i, l := range levels {
		all = append(all, l.needs...)
		if got := Level(all); got != l.name {
			t.Errorf("level %d is %q", i, got)
		}
	}
}

// TestHostsOfOneMachine: each starts with a core of its own.
func TestHostsOfOneMachine(t *testing.T) {
	for first, want := range map[int][]int{0: {0, 1, 2}, 1: {1, 2, 0}, 2: {2, 0, 1}, 4: {1, 2, 0}} {
		made := fleet.Topology{Nodes: []fleet.Node{{ID: 7}, {Cores: []fleet.Core{{CPUs: []int{0}}, {CPUs: []int{1}}, {CPUs: []int{2}}}}}}
		var got []int
		for _, c := range turned(&made, first).Nodes[1].Cores {
			got = append(got, c.CPUs...)
		}
		if !slices.Equal(got, want) {
			t.Errorf("from %d: %v, want %v", first, got, want)
		}
	}
}
