package qemu_test

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/qemu"
	"pagurus/fleet"
	"pagurus/internal/testkit"
	"pagurus/internal/thread"
	"pagurus/serve/agent/drivertest"
)

// TestStill: while a guest moves, its CPU and those of others on its host stay each on one of the host's CPUs, on
// different ones; afterwards they go where the kernel likes, also after a move that failed, and after an agent that died in one.
func TestStill(t *testing.T) {
	all, err := thread.CPUs(0)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 2 {
		t.Skip("this machine has one CPU")
	}
	w := newWorld(t)
	const moves, stays = "j1g0", "j1g1"
	c := w.config(t.Output(), 0)
	w.several(t, &c, 2)
	open := func() *qemu.Driver {
		d, err := qemu.Open(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	hosts := [2]*qemu.Driver{open(), w.open(t, 1)}
	defer func() {
		for _, d := range hosts {
			d.Stop(context.Background(), moves)
			d.Stop(context.Background(), stays)
			d.Close()
		}
	}()
	tk := indexed(moves)
	for _, each := range []fleet.Task{tk, indexed(stays)} {
		if err := hosts[0].Start(t.Context(), each); err != nil {
			t.Fatal(err)
		}
	}
	drivertest.Healthy(t, hosts[0], moves)
	drivertest.Healthy(t, hosts[0], stays)
	cpus := func(host int, id fleet.GuestID) fleet.CPUSet { return cpusOf(t, w.process(t, host, id)) }
	floats := func(host int, id fleet.GuestID) func() bool {
		return func() bool { return boundThreads(w.process(t, host, id), len(all)) == "" }
	}
	copied := func() {
		t.Helper()
		tk.Order.Migration += "x"
		if tk.Listen, err = hosts[1].Receive(t.Context(), tk); err != nil {
			t.Fatal(err)
		}
		if err := hosts[0].Copy(t.Context(), tk, func(fleet.Progress) {}); err != nil {
			t.Fatal(err)
		}
		one, other := cpus(0, moves), cpus(0, stays)
		if len(one) != 1 || len(other) != 1 || one[0] == other[0] {
			t.Fatalf("while it is copied its CPU may run on %v, and that of the other guest on %v", one, other)
		}
		if bound := boundThreads(w.process(t, 0, moves), len(all)); bound != "CPU 0/TCG" && bound != "CPU 0/KVM" {
			t.Errorf("what copies it is bound, too: %s", bound)
		}
	}
	copied()
	if err := hosts[0].Resume(t.Context(), moves); err != nil { // the copy is cancelled
		t.Fatal(err)
	}
	testkit.Until(t, 10*time.Second, "both float after a copy that was cancelled", func() bool { return floats(0, moves)() && floats(0, stays)() })
	if err := hosts[1].Stop(t.Context(), moves); err != nil {
		t.Fatal(err)
	}
	before := urgencies(t, w.process(t, 0, moves))
	copied()
	if err := hosts[1].Stop(t.Context(), moves); err != nil { // before the switch, which fails therefore
		t.Fatal(err)
	}
	if _, err := hosts[0].Switch(t.Context(), tk, func(bool) {}); err == nil {
		t.Fatal("a guest was switched to a host that had given it up")
	}
	if hurried := urgencies(t, w.process(t, 0, moves)); maps.Equal(before, hurried) {
		t.Errorf("at the switch QEMU's threads were not in a hurry: %v", hurried)
	}
	if err := hosts[0].Resume(t.Context(), moves); err != nil {
		t.Fatal(err)
	}
	if after := urgencies(t, w.process(t, 0, moves)); !maps.Equal(before, after) {
		t.Errorf("before a switch that failed the threads' urgencies were %v, afterwards %v", before, after)
	}
	copied()
	hosts[0].Close()
	hosts[0] = open()
	if !floats(0, moves)() || !floats(0, stays)() {
		t.Errorf("under the next agent their CPUs may run on %v and %v", cpus(0, moves), cpus(0, stays))
	}
	if err := hosts[0].Resume(t.Context(), moves); err != nil {
		t.Fatal(err)
	}
	if err := hosts[1].Stop(t.Context(), moves); err != nil {
		t.Fatal(err)
	}
	tk.Order.Migration += "y"
	w.move(t, tk, hosts[0], hosts[1])
	if err := hosts[0].Stop(t.Context(), moves); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, 10*time.Second, "both float after the move", func() bool { return floats(1, moves)() && floats(0, stays)() })
}

// urgencies are the nice values and time slices of a process's threads, by their names; all have the same that have one name.
func urgencies(t *testing.T, pid int) map[string][2]int64 {
	t.Helper()
	all := map[string][2]int64{}
	tasks, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task/*"))
	for _, task := range tasks {
		id, _ := strconv.Atoi(filepath.Base(task))
		name, _ := os.ReadFile(filepath.Join(task, "comm"))
		if strings.HasPrefix(string(name), "worker") { // come and go
			continue
		}
		if is, err := unix.SchedGetAttr(id, 0); err == nil {
			all[strings.TrimSpace(string(name))] = [2]int64{int64(is.Nice), int64(is.Runtime)}
		}
	}
	return all
}

// boundThreads names the threads of a process that may not run on all CPUs.
func boundThreads(pid, all int) string {
	var bound []string
	tasks, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task/*"))
	for _, task := range tasks {
		id, _ := strconv.Atoi(filepath.Base(task))
		if cpus, err := thread.CPUs(id); err == nil && len(cpus) < all {
			name, _ := os.ReadFile(filepath.Join(task, "comm"))
			bound = append(bound, strings.TrimSpace(string(name)))
		}
	}
	return strings.Join(bound, ", ")
}

// cpusOf gives where the only CPU of a guest may run, by its process.
func cpusOf(t *testing.T, pid int) fleet.CPUSet {
	t.Helper()
	tasks, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task/*"))
	for _, task := range tasks {
		if name, _ := os.ReadFile(filepath.Join(task, "comm")); strings.HasPrefix(string(name), "CPU ") {
			id, _ := strconv.Atoi(filepath.Base(task))
			cpus, err := thread.CPUs(id)
			if err != nil {
				t.Fatal(err)
			}
			return cpus
		}
	}
	t.Fatalf("process %d has no thread of a guest's CPU", pid)
	return nil
}
