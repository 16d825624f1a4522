package noise

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"
)

func TestACoreIsProbed(t *testing.T) {
	cpus, err := CPUs()
	if err != nil || len(cpus) == 0 {
		t.Fatalf("%v, %v", cpus, err)
	}
	cpu := cpus[len(cpus)-1]
	c, err := Probe(t.Context(), cpu, Calibrate(), 200*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, b := range c.Histogram() {
		total += b.Count
	}
	if len(c.Quanta) < 2 || total != len(c.Quanta) || c.Best() <= 0 || c.Lost() < 0 || c.Lost() >= 1 || c.Longest() < 0 {
		t.Errorf("%d quanta, %d in the histogram, at best %g, lost %g", len(c.Quanta), total, c.Best(), c.Lost())
	}
	t.Logf("core %d: at best %.3f ms, lost %.2f %%, longest %.3f ms, %v", c.CPU, 1e3*c.Best(), 100*c.Lost(), 1e3*c.Longest(), c.Sources)
	if _, err := Probe(t.Context(), 1000, 1, time.Second); err == nil {
		t.Error("a core that is not there was probed")
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := Probe(ctx, cpu, Calibrate(), time.Second); err == nil {
		t.Error("what was called off before it began gave something")
	}
}

func TestHistogram(t *testing.T) {
	c := Core{Quanta: []float64{1e-3, 1e-3 + 2e-6, 1e-3 + 5e-5, 1e-3 + 6e-5, 1e-3 + 2e-3}}
	var counts []int
	for _, b := range c.Histogram() {
		counts = append(counts, b.Count)
	}
	if !slices.Equal(counts, []int{1, 1, 2, 0, 1}) {
		t.Errorf("%v", c.Histogram())
	}
	if got := c.Longest(); math.Abs(got-2e-3) > 1e-12 {
		t.Errorf("the longest is %g", got)
	}
}

func TestAdd(t *testing.T) {
	c := Core{CPU: 3, Quanta: []float64{1}, Sources: []Source{{Name: "timer", Count: 5}, {Name: "disk", Count: 2}}}
	c.Add(Core{CPU: 3, Quanta: []float64{2, 1}, Sources: []Source{{Name: "others", Seconds: 0.5}, {Name: "disk", Count: 9}}})
	want := []Source{{Name: "others", Seconds: 0.5}, {Name: "disk", Count: 11}, {Name: "timer", Count: 5}}
	if !slices.Equal(c.Sources, want) || c.Busy() != 4*time.Second {
		t.Errorf("%+v, busy for %s", c.Sources, c.Busy())
	}
}

func TestReach(t *testing.T) {
	cpus, err := CPUs()
	if err != nil || Reach(cpus[0]) != nil || Reach(8000) == nil {
		t.Errorf("%v: %v, %v", err, Reach(cpus[0]), Reach(8000))
	}
}

func TestInterruptsAreReadOfTheirCore(t *testing.T) {
	const text = "           CPU0       CPU2       \n 24:          1          7  IO-APIC   5-edge      ACPI:Ged\nLOC:        100        200   Local timer interrupts\nERR:          0\n"
	got := interrupts(text, 2)
	if got["24 IO-APIC 5-edge ACPI:Ged"] != 7 || got["LOC Local timer interrupts"] != 200 || len(interrupts(text, 1)) != 0 {
		t.Errorf("%v", got)
	}
	if s := stolen("cpu  1 2 3 4 5 6 7 8 9 10\ncpu2 1 2 3 4 5 6 7 250 9 10\n", 2); s != 2.5 {
		t.Errorf("%g s were stolen", s)
	}
	before := counters{interrupts: map[string]uint64{"LOC": 5}, waited: 1}
	after := counters{interrupts: map[string]uint64{"LOC": 9, "24": 0}, waited: 1.5, switches: 3}
	all := after.since(before)
	if len(all) != 2 || all[0].Seconds != 0.5 || all[0].Count != 3 || all[1].Count != 4 {
		t.Errorf("%+v", all)
	}
}
