package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// pinned starts a process that uses all of the first CPU.
func pinned(t *testing.T) int {
	t.Helper()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	for cpu := 0; one.Count() == 0; cpu++ {
		if all.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	pid := spinner(t)
	// The tests may run in an idle class, whose threads have almost no weight in their
	// groups.
	normal := unix.SchedAttr{Size: unix.SizeofSchedAttr}
	if err := errors.Join(unix.SchedSetaffinity(pid, &one), unix.SchedSetAttr(pid, &normal, 0)); err != nil {
		t.Fatal(err)
	}
	return pid
}

func openGroup(t *testing.T, what string) *Groups {
	t.Helper()
	if os.Getpid() != 1 {
		testkit.Root(t)
	}
	g, err := Open(fmt.Sprintf("pagurus-test-%s-%d", what, os.Getpid()), 0)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// clear ends guests and removes their groups.
func clear(t *testing.T, g *Groups, guests map[fleet.GuestID]int) {
	for guest, pid := range guests {
		if err := errors.Join(unix.Kill(pid, unix.SIGKILL), g.Remove(guest)); err != nil {
			t.Error(err)
		}
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// share returns the first group's share of CPU time while all of them together use a
// second.
func share(t *testing.T, used ...func() (time.Duration, error)) float64 {
	t.Helper()
	all := func() (first, sum time.Duration) {
		for i, f := range used {
			d, err := f()
			if err != nil {
				t.Fatal(err)
			}
			if sum += d; i == 0 {
				first = d
			}
		}
		return first, sum
	}
	first, sum := all()
	var nowFirst, nowSum time.Duration
	testkit.Until(t, 40*time.Second, "they have used a second", func() bool {
		nowFirst, nowSum = all()
		return nowSum-sum > time.Second
	})
	return (nowFirst - first).Seconds() / (nowSum - sum).Seconds()
}

// weight reads what the kernel was told of a group, in CPUs. The share that a weight gives is the kernel's: on a busy machine Linux 6.18 gave one
// of two groups whose weights were as 2 to 1 all of a CPU for half a minute. So bounds of shares are wide.
func weight(t *testing.T, group string) float64 {
	t.Helper()
	for _, dir := range traces(strings.TrimPrefix(group, "/")) {
		for name, perCPU := range map[string]float64{"cpu.shares": sharesPerCPU, "cpu.weight": weightPerCPU} {
			if text, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
				n, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
				if err != nil {
					t.Fatal(err)
				}
				return n / perCPU
			}
		}
	}
	t.Fatalf("%s has no weight", group)
	return 0
}

// within measures a share repeatedly until it is within bounds, because others may use
// the CPU for some seconds. It returns the last.
func within(t *testing.T, least, most float64, used ...func() (time.Duration, error)) (got float64, ok bool) {
	t.Helper()
	for range 12 { // a group's time on another CPU counts there until the kernel updates it
		if got = share(t, used...); got >= least && got <= most {
			return got, true
		}
	}
	return got, false
}

// Deprioritised guests at once get almost none of a CPU that others want, and half of it
// again afterwards.
func TestGroupsDeprioritise(t *testing.T) {
	g, owner := openGroup(t, "guests"), openGroup(t, "owner")
	guests, owners := map[fleet.GuestID]int{"g1": pinned(t)}, map[fleet.GuestID]int{"o1": pinned(t)}
	defer clear(t, owner, owners)
	defer clear(t, g, guests)
	if err := errors.Join(g.Place("g1", guests["g1"], 1), owner.Place("o1", owners["o1"], 1)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := g.Deprioritise(0, false); err != nil {
			t.Fatal(err)
		}
	}
	if got, ok := within(t, 0, 0.05, g.Used, owner.Used); !ok {
		t.Errorf("guests that give way have %.3f of the CPU", got)
	}
	// The next agent finds this state and can change it.
	g, err := Open(strings.TrimPrefix(g.root, "/"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(g.Place("g1", guests["g1"], 2), g.Class("g1", Service{Class: fleet.Normal, CPUs: 1}), g.Deprioritise(0.5, false)); err != nil {
		t.Fatal(err)
	}
	if got, ok := within(t, 0, 0.05, g.Used, owner.Used); !ok {
		t.Errorf("guests that an earlier agent had give way have %.3f of the CPU", got)
	}
	// Leaving guests get a little, or they would never finish.
	if err := g.Deprioritise(0, true); err != nil {
		t.Fatal(err)
	}
	if got := weight(t, g.root); got != leavingWeight {
		t.Errorf("guests that leave weigh %g CPUs, want %g", got, leavingWeight)
	}
	if got, ok := within(t, 0.08, 0.4, g.Used, owner.Used); !ok {
		t.Errorf("guests that leave have %.3f of the CPU, want about a fifth", got)
	}
	if err := g.Deprioritise(0, false); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := g.Restore(); err != nil {
			t.Fatal(err)
		}
	}
	if got := weight(t, g.root); got != 1 {
		t.Errorf("guests that no longer give way weigh %g CPUs", got)
	}
	if got, ok := within(t, 0.4, 1, g.Used, owner.Used); !ok {
		t.Errorf("guests that no longer give way have %.3f of the CPU", got)
	}
}

// A limit lasts as long as the guests are deprioritised.
func TestDeprioritiseCeiling(t *testing.T) {
	g := openGroup(t, "ceiling")
	guests := map[fleet.GuestID]int{"g1": spinner(t), "g2": spinner(t)}
	defer clear(t, g, guests)
	for guest, pid := range guests {
		if err := g.Place(guest, pid, 1); err != nil {
			t.Fatal(err)
		}
	}
	const ceiling = 0.2
	if err := g.Deprioritise(ceiling, false); err != nil {
		t.Fatal(err)
	}
	before, err := g.Used()
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	time.Sleep(time.Second)
	after, err := g.Used()
	if most := time.Duration(ceiling*float64(time.Since(begun))) + 10*period; err != nil || after-before > most {
		t.Errorf("they used %s of %s: %v", after-before, most, err)
	}
	if err := g.Restore(); err != nil {
		t.Error(err)
	}
}

// Two busy guests share a CPU by their classes, and have the host's time slice.
func TestGroupsClass(t *testing.T) {
	g := openGroup(t, "class")
	const slice = 3 * time.Millisecond
	guests := map[fleet.GuestID]int{"g1": pinned(t), "g2": pinned(t)}
	defer clear(t, g, guests)
	for guest, pid := range guests {
		if err := g.Place(guest, pid, 1); err != nil {
			t.Fatal(err)
		}
	}
	if _, known := g.Count("g1", nil); !known {
		t.Fatal("the kernel does not count")
	}
	one, two := func() (time.Duration, error) { return g.UsedBy("g1") }, func() (time.Duration, error) { return g.UsedBy("g2") }
	for _, x := range []struct {
		first, second fleet.Class
		weights       [2]float64
		least         float64 // of the CPU
	}{{fleet.Gold, fleet.Normal, [2]float64{2, 1}, 0.58}, {fleet.Gold, fleet.Bronze, [2]float64{2, 0.5}, 0.7}, {"", fleet.Normal, [2]float64{1, 1}, 0.4}} {
		if err := errors.Join(g.Class("g1", Service{Class: x.first, CPUs: 1}), g.Class("g2", Service{Class: x.second, CPUs: 1}), g.Slice("g1", slice, nil)); err != nil {
			t.Fatal(err)
		}
		if got := [2]float64{weight(t, g.root+"/g1"), weight(t, g.root+"/g2")}; got != x.weights {
			t.Errorf("%q and %q weigh %v CPUs, want %v", x.first, x.second, got, x.weights)
		}
		if got, ok := within(t, x.least, 1, one, two); !ok {
			t.Errorf("%q beside %q has %.3f of the CPU, want at least %.2f", x.first, x.second, got, x.least)
		}
		if SlicesMissing() != "" {
			continue
		}
		if got, err := threadSlice(guests["g1"]); err != nil || got != slice {
			t.Errorf("%q has a slice of %s: %v", x.first, got, err)
		}
	}
	if c, known := g.Count("g1", nil); !known || c.Ran < 100*time.Millisecond || c.Waited < 100*time.Millisecond || c.Preempted < 5 || c.Slept > c.Preempted {
		t.Errorf("one of two busy ones on a CPU: %+v", c)
	}
	if c, known := g.Count("g2", func(name string) bool { return name == "CPU 0/KVM" }); known {
		t.Errorf("threads of another name: %+v", c)
	}
	if c, known := g.Count("none", nil); known {
		t.Errorf("a guest that is not there: %+v", c)
	}
	// With a ceiling one gets no more, though it would be due twice what the other has.
	// Of the time that passes, that is: on a busy machine the other has less.
	const ceiling = 0.2
	if err := errors.Join(g.Class("g1", Service{Class: fleet.Gold, CPUs: 1, Most: ceiling}), g.Class("g2", Service{CPUs: 1})); err != nil {
		t.Fatal(err)
	}
	before, err := one()
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if got, ok := within(t, ceiling-0.03, 1, one, two); !ok {
		t.Errorf("one that may use a fifth has %.3f of the CPU", got)
	}
	after, err := one()
	if most := time.Duration(ceiling*float64(time.Since(begun))) + 10*period; err != nil || after-before > most {
		t.Errorf("one that may use a fifth used %s of %s: %v", after-before, most, err)
	}
	if err := g.Class("g1", Service{CPUs: 1, Class: "lead"}); err == nil {
		t.Error("a class that there is not was given")
	}
	if err := g.Class("none", Service{Class: fleet.Gold, CPUs: 1}); err != nil {
		t.Errorf("a guest that is not there yet: %v", err)
	}
	if err := g.Remove("none"); err != nil {
		t.Error(err)
	}
}
