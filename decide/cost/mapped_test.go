package cost

import (
	"testing"
	"time"

	"pagurus/fleet"
)

// A container's mappings count, of any memory; a virtual machine's belong to its own
// kernel.
func TestMappingsTakeTime(t *testing.T) {
	p := fleet.Profile{MemoryBytes: 120 << 20, FilledBytes: 120 << 20}
	at := func(kind fleet.Kind, mappings, segments int) fleet.Prediction {
		q := p
		q.Mappings, q.Segments = mappings, segments
		return Fit(nil, Subject{Kind: kind}).Predict(q, Link{})
	}
	few, many, shared := at(fleet.Container, usualMappings, 0), at(fleet.Container, 31000, 0), at(fleet.Container, 30000, 30000)
	if few.Mapping != 0 {
		t.Errorf("a container with few mappings is suspended for %s for them", few.Mapping)
	}
	// 0.7 s as measured, 10.5 s as reported.
	if d := many.Downtime.Value - few.Downtime.Value; d < 500*time.Millisecond || d > time.Second || many.Mapping != d {
		t.Errorf("30,000 mappings take %s, %s", d, many.Mapping)
	}
	if d := shared.Mapping; d < 8*time.Second || d > 12*time.Second {
		t.Errorf("30,000 pieces of shared memory take %s", d)
	}
	if d := at(fleet.Container, 3000, 3000).Mapping; d < 400*time.Millisecond || d > 600*time.Millisecond {
		t.Errorf("3,000 pieces of shared memory take %s", d)
	}
	if many.Total.Value <= few.Total.Value {
		t.Error("the whole move takes no longer")
	}
	if vm := at(fleet.VM, 31000, 30000); vm.Mapping != 0 || vm.Downtime != at(fleet.VM, 0, 0).Downtime {
		t.Errorf("a virtual machine: %+v", vm)
	}
}

// Time for mappings in past moves is not learnt as rest.
func TestMappingsAreNotLearntAsRest(t *testing.T) {
	p := fleet.Profile{MemoryBytes: 1 << 20, FilledBytes: 1 << 20, Mappings: 31000}
	var all []fleet.Migration
	for n := range 20 {
		m := past(n, Model{kind: fleet.Container}.known(), p, Link{}, 1)
		m.Predicted.Kind, m.Cost.Downtime = fleet.Container, 900*time.Millisecond
		all = append(all, m)
	}
	model := Fit(all, Subject{Kind: fleet.Container})
	many := model.Predict(p, Link{})
	p.Mappings = 0
	few := model.Predict(p, Link{})
	if few.Downtime.Value > 400*time.Millisecond || many.Downtime.Value < 700*time.Millisecond || many.Downtime.Value > 1100*time.Millisecond {
		t.Errorf("after 0.9 s with 31,000 mappings %s is said of few, %s of as many", few.Downtime.Value, many.Downtime.Value)
	}
}
