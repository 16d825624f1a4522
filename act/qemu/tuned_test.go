package qemu_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pagurus/fleet"
	"pagurus/serve/agent/drivertest"
)

// TestTunedGuestKeepsItsShape: a guest with two nodes sees them from inside, and
// still does where it went, although its memory is bound to nothing there and its
// CPUs float. It was planned for a host with as many nodes as it has; here there may
// be one.
func TestTunedGuestKeepsItsShape(t *testing.T) {
	w := newWorld(t)
	tk := task("j1g0")
	tk.Guest.Need = fleet.Resources{CPUs: 4, MemoryBytes: 256 << 20}
	tk.Guest.Shape = &fleet.Shape{Sockets: 2, Cores: 2, Threads: 1, Nodes: []fleet.ShapeNode{
		{CPUs: 2, MemoryBytes: 128 << 20, Distances: []int{10, 21}}, {CPUs: 2, MemoryBytes: 128 << 20, Distances: []int{21, 10}},
	}}
	last := runtime.NumCPU() - 1
	bound := []fleet.LayoutNode{{Hosts: []int{0}}, {Hosts: []int{0}}}
	layouts := [2]fleet.Layout{
		{Nodes: bound, Pins: [][]int{{0}, {0}, {last}, {last}}},
		{Nodes: []fleet.LayoutNode{{}, {}}},
	}
	const want = "node0:0-1:10-21 node1:2-3:21-10 cpu0:0:0 cpu1:0:1 cpu2:1:2 cpu3:1:3"
	tk.Layout = &layouts[0]
	hosts := w.started(t, tk)
	const moves = 4 // memory that is lost is not noticed at once
	for i := range moves + 1 {
		at, to := hosts[i%2], hosts[(i+1)%2]
		if got, err := drivertest.Ask(t.Context(), at, tk.Guest.ID, "shape"); err != nil || got != want {
			t.Fatalf("after %d moves it sees %q, want %q: %v", i, got, want, err)
		}
		drivertest.Healthy(t, at, tk.Guest.ID)
		facts, err := at.Inspect(t.Context())
		if err != nil || !reflect.DeepEqual(facts[tk.Guest.ID].Layout, &layouts[i%2]) {
			t.Errorf("it is said to be at %+v, %v", facts[tk.Guest.ID].Layout, err)
		}
		if pid := w.process(t, i%2, tk.Guest.ID); i%2 == 0 {
			pinned(t, pid, 4, fmt.Sprint("0 ", last))
		}
		if i == moves {
			break
		}
		tk.Order.Migration, tk.Layout = fleet.MigrationID(fmt.Sprintf("m%d", i)), &layouts[(i+1)%2]
		w.move(t, tk, at, to)
	}
}

// pinned checks that so many threads of QEMU, the guest's CPUs, are kept on one of
// some CPUs of the host each.
func pinned(t *testing.T, pid, threads int, cpus string) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil || !strings.HasPrefix(string(text), "Name:\tCPU ") {
			continue
		}
		found++
		_, kept, _ := strings.Cut(string(text), "\nCpus_allowed_list:\t")
		if kept, _, _ = strings.Cut(kept, "\n"); !slices.Contains(strings.Fields(cpus), kept) {
			t.Errorf("a CPU of the guest is kept on %s, and not on one of %s", kept, cpus)
		}
	}
	if found != threads {
		t.Errorf("%d threads are the guest's CPUs, want %d", found, threads)
	}
}
