package bench

import (
	"math"
	"testing"

	"pagurus/bench/noise"
)

// One quantum in a hundred takes twice as long. Of R ranks, the step does so with the chance 1 -
// 0.99^R.
func TestNoiseHurtsMoreTheLargerTheJob(t *testing.T) {
	c := noise.Core{}
	for i := range 1000 {
		q := 1e-3
		if i%100 == 0 {
			q = 2e-3
		}
		c.Quanta = append(c.Quanta, q)
	}
	for _, ranks := range []int{1, 2, 16, 64} {
		got, err := PredictStep([]noise.Core{c}, ranks, 0.97, 1)
		want := 2 - math.Pow(0.99, float64(ranks))
		if err != nil || math.Abs(got.Value-want) > 0.02 || got.Low > got.Value || got.High < got.Value {
			t.Errorf("%d ranks: %+v, theory has %.4f: %v", ranks, got, want, err)
		}
	}
	for _, ranks := range []int{1, 64} {
		if got, want := c.Step(ranks), 2-math.Pow(0.99, float64(ranks)); math.Abs(got-want) > 1e-9 {
			t.Errorf("%d ranks: %g, theory has %g", ranks, got, want)
		}
	}
	if empty := (noise.Core{}); !math.IsNaN(empty.Longest()) || !math.IsNaN(empty.Step(2)) || !math.IsNaN(empty.Best()) {
		t.Error("of nothing there is a longest quantum, a step or a best")
	}
	if _, err := PredictStep(nil, 2, 0.97, 1); err == nil {
		t.Error("something was predicted from nothing")
	}
}
