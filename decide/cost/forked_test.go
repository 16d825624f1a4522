package cost

import (
	"testing"
	"time"

	"pagurus/fleet"
)

// A container's processes count, and in a chain their ancestors; a virtual machine's belong
// to its own kernel.
func TestProcessesTakeTime(t *testing.T) {
	at := func(kind fleet.Kind, processes, ancestors int) time.Duration {
		p := fleet.Profile{MemoryBytes: 20 << 20, FilledBytes: 20 << 20, Processes: processes, Ancestors: ancestors}
		return Fit(nil, Subject{Kind: kind}).Predict(p, Link{}).Downtime.Value
	}
	chain := func(n int) int { return n * (n + 3) / 2 } // each has those of the one before, and that one
	few := at(fleet.Container, 0, 0)
	if usual := at(fleet.Container, usualProcesses, usualProcesses*usualAncestors); usual != few {
		t.Errorf("a usual container is suspended for %s, one of which nothing is known for %s", usual, few)
	}
	for _, c := range []struct {
		processes, ancestors int
		seen                 time.Duration
	}{
		{23, 23 * usualAncestors, 220 * time.Millisecond},
		{103, 103 * usualAncestors, 850 * time.Millisecond},
		{123, chain(123), 2100 * time.Millisecond},
	} {
		if got := at(fleet.Container, c.processes, c.ancestors); got > c.seen*3/2 || c.seen > got*3/2 {
			t.Errorf("%d processes with %d ancestors are said to be suspended for %s, and were for %s", c.processes, c.ancestors, got, c.seen)
		}
	}
	if at(fleet.VM, 123, chain(123)) != at(fleet.VM, 0, 0) {
		t.Error("a virtual machine's processes count")
	}
}

// Time for processes in past moves is not learnt as rest.
func TestProcessesAreNotLearntAsRest(t *testing.T) {
	p := fleet.Profile{MemoryBytes: 1 << 20, FilledBytes: 1 << 20, Processes: 123, Ancestors: 123 * usualAncestors}
	var all []fleet.Migration
	for n := range 20 {
		m := past(n, Model{kind: fleet.Container}.known(), p, Link{}, 1)
		m.Predicted.Kind, m.Cost.Downtime = fleet.Container, time.Second
		all = append(all, m)
	}
	model := Fit(all, Subject{Kind: fleet.Container})
	many := model.Predict(p, Link{}).Downtime.Value
	p.Processes, p.Ancestors = 0, 0
	few := model.Predict(p, Link{}).Downtime.Value
	if few > 400*time.Millisecond || many < 800*time.Millisecond || many > 1200*time.Millisecond {
		t.Errorf("after 1 s with 123 processes %s is said of few, %s of as many", few, many)
	}
}
