package qemu_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pagurus/act/qemu"
	"pagurus/fleet"
	"pagurus/internal/testkit"
	"pagurus/serve/agent/drivertest"
)

// TestTunedGuestKeepsItsShape: a guest with two nodes sees them from inside, also after
// moves, although its memory is not bound there and its CPUs float. Where CPUs are
// pinned, QEMU's other threads run elsewhere. The layout is for a host with as many
// nodes; this one may have one.
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
		{Nodes: bound, Pins: [][]int{{0}, {0}, {0}, {0}}, Rest: []int{last}},
		{Nodes: []fleet.LayoutNode{{}, {}}},
	}
	const want = "node0:0-1:10-21 node1:2-3:21-10 cpu0:0:0 cpu1:0:1 cpu2:1:2 cpu3:1:3"
	tk.Layout = &layouts[0]
	hosts := w.started(t, tk)
	if got, err := drivertest.Ask(t.Context(), hosts[0], tk.Guest.ID, "shape"); err == nil && got == "cpu0:0:0" {
		testkit.Emulated(t, "it knows one CPU, and no nodes")
	}
	const moves = 4 // lost memory is not always noticed at once
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
			pinned(t, pid, 4, layouts[0])
		}
		if i == moves {
			break
		}
		tk.Order.Migration, tk.Layout = fleet.MigrationID(fmt.Sprintf("m%d", i)), &layouts[(i+1)%2]
		w.move(t, tk, at, to)
	}
}

// TestHugePagesMove: a guest in huge pages moves to a host without and back, in both
// modes of copying, and uses huge pages where they exist. In post-copy QEMU needs the
// same pages on both sides: otherwise the guest stays, unharmed.
func TestHugePagesMove(t *testing.T) {
	contract(t)
	const page = 2 << 20
	setAside(t, 2*memory/page)
	w := newWorld(t)
	tk := task("j1g0")
	tk.Guest.Shape = &fleet.Shape{Sockets: 1, Cores: 1, Threads: 1}
	huge, small := fleet.Layout{Nodes: []fleet.LayoutNode{{PageBytes: page}}}, fleet.Layout{Nodes: []fleet.LayoutNode{{}}}
	tk.Layout = &huge
	hosts := w.started(t, tk)
	if oldQEMU(t, hosts[0]) {
		return
	}
	late := hosts[0].Abilities().PostCopy
	var sent []int64
	for i, c := range []struct {
		says   []string // to the guest, before it moves
		layout fleet.Layout
		mode   fleet.Mode
		stays  bool
	}{
		{layout: huge, says: []string{"dirty 0", "read"}}, {layout: huge, says: []string{"read", "drop"}}, {layout: small}, {layout: huge},
		{layout: huge, mode: fleet.PostCopy}, {layout: small, mode: fleet.PostCopy, stays: true},
	} {
		from, to := hosts[i%2], hosts[(i+1)%2]
		if c.mode == fleet.PostCopy && !late {
			t.Log("this machine does not do post-copy")
			break
		}
		drivertest.Healthy(t, from, tk.Guest.ID)
		tell(t, from, tk.Guest.ID, c.says...)
		tk.Order.Migration, tk.Layout = fleet.MigrationID(fmt.Sprintf("m%d", i)), &c.layout
		tk.Limits = fleet.Limits{Mode: c.mode, Preempt: c.mode == fleet.PostCopy}
		if c.stays {
			w.stays(t, tk, from, to)
			break
		}
		sent = append(sent, w.move(t, tk, from, to).SentBytes)
		if c.mode == fleet.PostCopy {
			if err := to.FetchRemaining(t.Context(), tk.Guest.ID); err != nil {
				t.Fatal(err)
			}
		}
		drivertest.Healthy(t, to, tk.Guest.ID)
		if got, want := w.hugeBytes(t, (i+1)%2, tk.Guest.ID), c.layout.Nodes[0].PageBytes/page*memory; got != want {
			t.Errorf("after move %d it has %d MiB in huge pages, want %d", i, got>>20, want>>20)
		}
	}
	if sent[1] > sent[0]-diskBytes/2 {
		t.Errorf("with its page cache %d MiB were sent, without %d", sent[0]>>20, sent[1]>>20)
	}
}

// TestHugePagesThatAreGone: a guest that was promised too many huge pages starts in small
// ones, says so, and takes no huge ones.
func TestHugePagesThatAreGone(t *testing.T) {
	contract(t)
	const page = 2 << 20
	setAside(t, memory/page/2)
	w := newWorld(t)
	tk := task("j1g0")
	tk.Guest.Shape = &fleet.Shape{Sockets: 1, Cores: 1, Threads: 1}
	tk.Layout = &fleet.Layout{Nodes: []fleet.LayoutNode{{Hosts: []int{0}, PageBytes: page, MemoryBytes: memory}}}
	host := w.started(t, tk)[0]
	if oldQEMU(t, host) {
		return
	}
	drivertest.Healthy(t, host, tk.Guest.ID)
	facts, err := host.Inspect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l := facts[tk.Guest.ID].Layout
	if l == nil || l.Nodes[0].PageBytes != 0 || !slices.Equal(l.Nodes[0].Hosts, []int{0}) || len(l.Notes) != 1 || !strings.Contains(l.Notes[0], "no huge pages: take 96 pages") {
		t.Errorf("it is said to be at %+v", l)
	}
	if got := w.hugeBytes(t, 0, tk.Guest.ID); got != 0 {
		t.Errorf("it has %d MiB in huge pages", got>>20)
	}
	if tk.Layout.Nodes[0].PageBytes == 0 {
		t.Error("the plan was changed, which others have as well")
	}
}

// stays tries an impossible move: the guest goes on where it is.
func (w *world) stays(t *testing.T, tk fleet.Task, from, to *qemu.Driver) {
	t.Helper()
	listen, err := to.Receive(t.Context(), tk)
	tk.Listen = listen
	if err == nil {
		err = from.Copy(t.Context(), tk, func(fleet.Progress) {})
	}
	if err == nil {
		_, err = from.Switch(t.Context(), tk, func(bool) {})
	}
	if err == nil || errors.Is(err, fleet.ErrUnsure) {
		t.Errorf("a guest went to pages of another size by post-copy, or nobody knows: %v", err)
	} else if !strings.Contains(err.Error(), "pages of another size") {
		t.Errorf("why it stays is not said: %v", err)
	}
	if err := errors.Join(from.Resume(t.Context(), tk.Guest.ID), to.Stop(t.Context(), tk.Guest.ID)); err != nil {
		t.Error(err)
	}
	drivertest.Healthy(t, from, tk.Guest.ID)
}

// oldQEMU reports whether guests of this QEMU never have huge pages (Loses).
func oldQEMU(t *testing.T, d *qemu.Driver) bool {
	t.Helper()
	old := strings.Contains(d.Abilities().CPU, "before 9")
	if old {
		t.Log("emulated guests of this QEMU have no huge pages")
	}
	return old
}

// setAsideFile sets the number of reserved huge pages of 2 MiB.
const setAsideFile = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"

// setAside reserves more huge pages of 2 MiB during the test. TestMain also restores the
// number, in case the test does not finish.
func setAside(t *testing.T, more int) {
	t.Helper()
	const file = setAsideFile
	_ = os.WriteFile("/proc/sys/vm/compact_memory", []byte("1"), 0) // so that some can be made
	text, err := os.ReadFile(file)
	if err != nil {
		t.Skipf("this kernel has no huge pages: %v", err)
	}
	before, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, fmt.Append(nil, before+more))
	t.Cleanup(func() { write(t, file, text) })
	if got, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(got)) != strconv.Itoa(before+more) {
		t.Skipf("no %d huge pages are to be had: %s, %v", more, got, err)
	}
}

// hugeBytes is a guest's memory in huge pages.
func (w *world) hugeBytes(t *testing.T, host int, id fleet.GuestID) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.process(t, host, id)))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "HugetlbPages:")
	var kib int64
	if _, err := fmt.Sscan(after, &kib); err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// pinned checks that the guest's CPU threads are pinned like the first one, and all
// others to the CPU of the rest.
func pinned(t *testing.T, pid, threads int, l fleet.Layout) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(string(text), "Name:\t"), "\n")
		want := fmt.Sprint(l.Rest[0])
		if strings.HasPrefix(name, "CPU ") {
			found++
			want = fmt.Sprint(l.Pins[0][0])
		}
		_, kept, _ := strings.Cut(string(text), "\nCpus_allowed_list:\t")
		if kept, _, _ = strings.Cut(kept, "\n"); kept != want {
			t.Errorf("thread %q is kept on %s, and not on %s", name, kept, want)
		}
	}
	if found != threads || len(files) <= threads {
		t.Errorf("%d of %d threads are the guest's CPUs, want %d and others", found, len(files), threads)
	}
}
