package qemu_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/qemu"
	"pagurus/fleet"
	"pagurus/internal/testkit"
	"pagurus/serve/agent/drivertest"
)

// again makes a checkpoint of the guest at one host, ends it there, and has it run at the other from the files.
func again(t *testing.T, tk fleet.Task, from, to *qemu.Driver) {
	t.Helper()
	folder := t.TempDir()
	steps(t, from, tk, folder, fleet.Arm, fleet.Cut, fleet.Continue, fleet.Save)
	drivertest.Healthy(t, from, tk.Guest.ID)
	if err := from.Stop(t.Context(), tk.Guest.ID); err != nil {
		t.Fatal(err)
	}
	steps(t, to, tk, folder, fleet.Restore)
	if err := to.Resume(t.Context(), tk.Guest.ID); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, to, tk.Guest.ID)
}

// TestCheckpointOfATunedGuest: it has its shape again, on a host with another layout.
func TestCheckpointOfATunedGuest(t *testing.T) {
	w := newWorld(t)
	tk := task("j1g0")
	tk.Guest.Need = fleet.Resources{CPUs: 4, MemoryBytes: 256 << 20}
	tk.Guest.Shape = &fleet.Shape{Sockets: 2, Cores: 2, Threads: 1, Nodes: []fleet.ShapeNode{
		{CPUs: 2, MemoryBytes: 128 << 20, Distances: []int{10, 21}}, {CPUs: 2, MemoryBytes: 128 << 20, Distances: []int{21, 10}},
	}}
	bound := []fleet.LayoutNode{{Hosts: []int{0}}, {Hosts: []int{0}}}
	tk.Layout = &fleet.Layout{Nodes: bound, Pins: [][]int{{0}, {0}, {0}, {0}}, Rest: []int{0}}
	hosts := w.started(t, tk)
	drivertest.Healthy(t, hosts[0], tk.Guest.ID)
	want, err := drivertest.Ask(t.Context(), hosts[0], tk.Guest.ID, "shape")
	if err != nil {
		t.Fatal(err)
	}
	tk.Layout = &fleet.Layout{Nodes: []fleet.LayoutNode{{}, {}}}
	again(t, tk, hosts[0], hosts[1])
	if got, err := drivertest.Ask(t.Context(), hosts[1], tk.Guest.ID, "shape"); err != nil || got != want {
		t.Errorf("it sees %q, and saw %q: %v", got, want, err)
	}
}

// TestCheckpointOfHugePages: from huge pages to small ones and back.
func TestCheckpointOfHugePages(t *testing.T) {
	contract(t)
	const page = 2 << 20
	setAside(t, 2*memory/page)
	w := newWorld(t)
	tk := task("j1g0")
	tk.Guest.Shape = &fleet.Shape{Sockets: 1, Cores: 1, Threads: 1}
	huge, small := fleet.Layout{Nodes: []fleet.LayoutNode{{PageBytes: page}}}, fleet.Layout{Nodes: []fleet.LayoutNode{{}}}
	tk.Layout = &huge
	hosts := w.started(t, tk)
	drivertest.Healthy(t, hosts[0], tk.Guest.ID)
	tk.Layout = &small
	again(t, tk, hosts[0], hosts[1])
	tk.Layout = &huge
	again(t, tk, hosts[1], hosts[0])
	if got := w.hugeBytes(t, 0, tk.Guest.ID); got != memory {
		t.Errorf("it has %d MiB in huge pages", got>>20)
	}
}

// TestCheckpointAfterReclaim: what a guest gave to its host's owner is no memory of its checkpoint, and comes back to it.
func TestCheckpointAfterReclaim(t *testing.T) {
	w := newWorld(t)
	tk := task("j1g0")
	hosts := w.started(t, tk)
	tell(t, hosts[0], tk.Guest.ID, "read", "drop")
	if _, err := hosts[0].ReclaimMemory(t.Context(), tk.Guest.ID, 64<<20); err != nil {
		t.Fatal(err)
	}
	again(t, tk, hosts[0], hosts[1])
	if err := hosts[1].ReturnMemory(t.Context(), tk.Guest.ID); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, hosts[1], tk.Guest.ID)
}

// TestWriterKilled: the guest runs on, that checkpoint is void, and the next one is good.
func TestWriterKilled(t *testing.T) {
	w := newWorld(t)
	tk := task("j1g0")
	tk.Guest.Need.MemoryBytes = 1 << 30 // so that it takes a while
	hosts := w.started(t, tk)
	drivertest.Healthy(t, hosts[0], tk.Guest.ID)
	steps(t, hosts[0], tk, t.TempDir(), fleet.Arm, fleet.Cut, fleet.Continue)
	if killed := w.killWriters(t); killed != 1 {
		t.Fatalf("%d writers ran", killed)
	}
	begun := time.Now()
	err := checkpointSteps[fleet.Save](t.Context(), hosts[0], tk, "")
	if err == nil {
		t.Fatal("what nobody wrote is saved")
	}
	t.Logf("after %s: %v", time.Since(begun), err)
	drivertest.Healthy(t, hosts[0], tk.Guest.ID)
	steps(t, hosts[0], tk, "", fleet.Drop)
	again(t, tk, hosts[0], hosts[1])
}

// TestWriterWaits: an armed guest's writer waits for the cut, which does without; a checkpoint that is given up leaves none.
func TestWriterWaits(t *testing.T) {
	w := newWorld(t)
	tk := task("j1g0")
	hosts := w.started(t, tk)
	drivertest.Healthy(t, hosts[0], tk.Guest.ID)
	steps(t, hosts[0], tk, t.TempDir(), fleet.Arm, fleet.Drop)
	if left := len(w.writers(t)); left > 0 {
		t.Errorf("%d writers are left of a checkpoint that was given up", left)
	}
	folder := t.TempDir()
	steps(t, hosts[0], tk, folder, fleet.Arm)
	before := w.writers(t)
	steps(t, hosts[0], tk, folder, fleet.Arm, fleet.Cut)
	if after := w.writers(t); len(before) != 1 || !slices.Equal(before, after) {
		t.Errorf("writers %v waited for the cut, and then there were %v", before, after)
	}
	steps(t, hosts[0], tk, folder, fleet.Continue, fleet.Save, fleet.Drop)
	folder = t.TempDir()
	steps(t, hosts[0], tk, folder, fleet.Arm)
	if killed := w.killWriters(t); killed != 1 {
		t.Fatalf("%d writers waited", killed)
	}
	steps(t, hosts[0], tk, folder, fleet.Cut, fleet.Continue, fleet.Save, fleet.Drop)
	again(t, tk, hosts[0], hosts[1])
}

// writers are the processes that write checkpoints of the first host's guests.
func (w *world) writers(t *testing.T) (pids []int) {
	t.Helper()
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range found {
		line, _ := os.ReadFile(path)
		at, _ := os.Readlink(filepath.Join(filepath.Dir(path), "cwd"))
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil && strings.HasPrefix(string(line), "pagurus-writer\x00") && strings.HasPrefix(at, w.hosts[0].Run) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// killWriters kills them, and says how many they were.
func (w *world) killWriters(t *testing.T) int {
	t.Helper()
	all := w.writers(t)
	for _, pid := range all {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	for _, pid := range all {
		testkit.Until(t, time.Minute, "a killed writer ends", func() bool { return !slices.Contains(w.writers(t), pid) })
	}
	return len(all)
}
