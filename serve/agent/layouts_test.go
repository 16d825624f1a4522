package agent

import (
	"testing"

	"pagurus/act/numa"
	"pagurus/act/numa/recorded"
	"pagurus/decide/topology"
	"pagurus/fleet"
)

func layoutTask(id fleet.GuestID, host fleet.Topology) fleet.Task {
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
	first := l.Plan(layoutTask("g1", host), &host, nil)
	second := l.Plan(layoutTask("g2", host), &host, nil)
	had := map[int]bool{}
	for _, p := range append(first.Layout.Pins, second.Layout.Pins...) {
		if len(p) != 1 || had[p[0]] {
			t.Fatalf("%+v and %+v", first.Layout, second.Layout)
		}
		had[p[0]] = true
	}
	if again := l.Plan(layoutTask("g1", host), &host, nil); again.Layout != first.Layout {
		t.Errorf("it was planned again: %+v", again.Layout)
	}
	third := l.Plan(layoutTask("g3", host), &host, nil)
	if len(third.Layout.Pins[0]) == 1 {
		t.Errorf("nothing is left, and it got %+v", third.Layout)
	}
	l.Forget("g1")
	if fourth := l.Plan(layoutTask("g4", host), &host, nil); len(fourth.Layout.Pins[0]) != 1 {
		t.Errorf("g1's cores are free, and it got %+v", fourth.Layout)
	}
}

// A restarted agent finds guests that are already pinned.
func TestGuestsOfAnEarlierAgentKeepTheirs(t *testing.T) {
	host, err := numa.Read(recorded.Machine(t, "2n6c2t"))
	if err != nil {
		t.Fatal(err)
	}
	var before, after Layouts
	was := before.Plan(layoutTask("g1", host), &host, nil)
	found := map[fleet.GuestID]*fleet.Layout{"g1": was.Layout, "g9": nil}
	got := after.Plan(layoutTask("g2", host), &host, found)
	for _, p := range got.Layout.Pins {
		for _, q := range was.Layout.Pins {
			if p[0] == q[0] {
				t.Fatalf("%+v and %+v", was.Layout, got.Layout)
			}
		}
	}
	if same := after.Plan(layoutTask("g1", host), &host, found); same.Layout != was.Layout {
		t.Errorf("%+v", same.Layout)
	}
	plain := layoutTask("g5", host)
	plain.Guest.Shape = nil
	if after.Plan(plain, &host, nil).Layout != nil || after.Plan(layoutTask("g6", host), nil, nil).Layout != nil {
		t.Error("a guest without a shape, or on a host that says nothing, has a layout")
	}
}

// The actual layout counts, not the plan. Here the guest did not get the huge pages, so the
// next guest may.
func TestGuestsAreWhereTheySayThatTheyAre(t *testing.T) {
	host, err := numa.Read(recorded.Machine(t, "2n6c2t"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range host.Nodes {
		host.Nodes[i].Huge = []fleet.HugePages{{SizeBytes: 1 << 30, Total: 1 - i, Free: 1 - i}}
	}
	huge := func(id fleet.GuestID) fleet.Task {
		tk := layoutTask(id, host)
		tk.Job.Spec.Tune = fleet.Tune{NUMA: true, Huge: true}
		return tk
	}
	var l Layouts
	first := l.Plan(huge("g1"), &host, nil).Layout
	if n := first.Nodes[0]; n.Hosts[0] != 0 || n.PageBytes != 1<<30 {
		t.Fatalf("%+v", first)
	}
	if n := l.Plan(huge("g2"), &host, nil).Layout.Nodes[0]; n.Hosts[0] != 1 || n.PageBytes != 0 {
		t.Errorf("the same page was promised twice, or they are on one node: %+v", n)
	}
	small := fleet.Layout{Nodes: []fleet.LayoutNode{{Hosts: []int{0}, MemoryBytes: 1 << 30}}}
	found := map[fleet.GuestID]*fleet.Layout{"g1": &small}
	if n := l.Plan(huge("g3"), &host, found).Layout.Nodes[0]; n.PageBytes != 1<<30 {
		t.Errorf("a page that no guest has was not given: %+v", n)
	}
	if got := l.Plan(huge("g1"), &host, found).Layout; got != &small {
		t.Errorf("g1 is said to be at %+v", got)
	}
}
