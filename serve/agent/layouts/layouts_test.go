package layouts

import (
	"testing"

	"pagurus/act/numa"
	"pagurus/act/numa/recorded"
	"pagurus/decide/topology"
	"pagurus/fleet"
)

func task(id fleet.GuestID, host fleet.Topology) fleet.Task {
	need, tune := fleet.Resources{CPUs: 6, MemoryBytes: 1 << 30}, fleet.Tune{NUMA: true, Pin: true}
	s := topology.Shape(host, need, tune, nil)
	return fleet.Task{Guest: fleet.Guest{ID: id, Need: need, Shape: &s}, Job: fleet.Job{Spec: fleet.JobSpec{Tune: tune}}}
}

func TestNoTwoGuestsGetTheSameCores(t *testing.T) {
	host, err := numa.Read(recorded.Machine(t, "2n6c2t"))
	if err != nil {
		t.Fatal(err)
	}
	var l Layouts
	first := l.Plan(task("g1", host), &host, nil)
	second := l.Plan(task("g2", host), &host, nil)
	had := map[int]bool{}
	for _, p := range append(first.Layout.Pins, second.Layout.Pins...) {
		if len(p) != 1 || had[p[0]] {
			t.Fatalf("%+v and %+v", first.Layout, second.Layout)
		}
		had[p[0]] = true
	}
	if again := l.Plan(task("g1", host), &host, nil); again.Layout != first.Layout {
		t.Errorf("it was planned anew: %+v", again.Layout)
	}
	third := l.Plan(task("g3", host), &host, nil)
	if len(third.Layout.Pins[0]) == 1 {
		t.Errorf("nothing is left, and it got %+v", third.Layout)
	}
	l.Forget("g1")
	if fourth := l.Plan(task("g4", host), &host, nil); len(fourth.Layout.Pins[0]) != 1 {
		t.Errorf("g1's cores are free, and it got %+v", fourth.Layout)
	}
}

// An agent that was started again finds guests that are pinned already.
func TestGuestsOfAnEarlierAgentKeepTheirs(t *testing.T) {
	host, err := numa.Read(recorded.Machine(t, "2n6c2t"))
	if err != nil {
		t.Fatal(err)
	}
	var before, after Layouts
	was := before.Plan(task("g1", host), &host, nil)
	found := map[fleet.GuestID]*fleet.Layout{"g1": was.Layout, "g9": nil}
	got := after.Plan(task("g2", host), &host, found)
	for _, p := range got.Layout.Pins {
		for _, q := range was.Layout.Pins {
			if p[0] == q[0] {
				t.Fatalf("%+v and %+v", was.Layout, got.Layout)
			}
		}
	}
	if same := after.Plan(task("g1", host), &host, found); same.Layout != was.Layout {
		t.Errorf("%+v", same.Layout)
	}
	plain := task("g5", host)
	plain.Guest.Shape = nil
	if after.Plan(plain, &host, nil).Layout != nil || after.Plan(task("g6", host), nil, nil).Layout != nil {
		t.Error("a guest without a shape, or on a host that says nothing, has a layout")
	}
}
