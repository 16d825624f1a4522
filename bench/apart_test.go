package bench

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// alikePairs tells of pairs of runs which are alike in how far the CPUs were from each other:
// near in both, or far in both, before and after.
func alikePairs(a, b []Distance) []bool {
	all := kinds(slices.Concat(a, b))
	out := make([]bool, min(len(a), len(b)))
	for i := range out {
		out[i] = all[i].like(all[len(a)+i])
	}
	return out
}

func TestWhatIsAlike(t *testing.T) {
	d := func(least, most time.Duration) Distance { return Distance{least, most} }
	for _, c := range []struct {
		a, b []Distance
		like []bool
	}{
		{nil, nil, []bool{}},
		{[]Distance{d(0, 0)}, []Distance{d(0, 0)}, []bool{true}},
		{[]Distance{d(300, 310), d(300, 300)}, []Distance{d(310, 310), d(320, 400)}, []bool{true, true}},
		{[]Distance{d(50, 60), d(320, 330), d(50, 320), d(320, 320), d(60, 320)}, []Distance{d(80, 80), d(300, 320), d(50, 50), d(50, 60), d(50, 320)}, []bool{true, true, false, false, false}},
	} {
		if got := alikePairs(c.a, c.b); !slices.Equal(got, c.like) {
			t.Errorf("of %v and %v alike are %v", c.a, c.b, got)
		}
	}
}

// Runs with CPUs that are far from each other are told apart by it: the ratio of the
// pairs that are alike is given too, and the record has what it is from.
func TestPairsOfLikeWithLike(t *testing.T) {
	const near, far = 50 * time.Nanosecond, 320 * time.Nanosecond
	// Two rounds of twelve are far, in one after the run and in the other before.
	asked := 0
	at := func() time.Duration {
		asked++
		if asked == 2*4+2 || asked == 4*4+1 {
			return far
		}
		return near
	}
	// The other target takes three times as long where it is far.
	s := &shell{}
	e := Experiment{Spec: spec(number("echo 1"), 12, "a", "b"), Place: s, Apart: at}
	if err := e.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range e.Record.Runs {
		run := &e.Record.Runs[i]
		if slow := run.Round == 2 || run.Round == 4; slow && run.Target == "b" {
			run.Figures["v"] = 3
		}
	}
	row := e.Record.Summarise().Rows[1]
	said := strings.Join(row.Doubts, "; ")
	if row.Ratio.Value < 1.1 || !strings.Contains(said, "in 2 of 24 runs") || !strings.Contains(said, "(320ns there and back, else 50ns)") || !strings.Contains(said, "of the 10 pairs that are alike in that the ratio is 1 (95 %: 1 to 1, n=10)") {
		t.Errorf("the ratio is %v, and of doubts is said %q", row.Ratio, said)
	}
	if got := fmt.Sprint(e.Record.Runs[4].Apart, e.Record.Runs[5].Apart, e.Record.Runs[8].Apart); got != "320ns 50ns 320ns" {
		t.Errorf("the record has %s", got)
	}
}

func TestNothingIsSaidOfCPUsThatStay(t *testing.T) {
	for _, apart := range []func() time.Duration{nil, func() time.Duration { return 310 }, func() time.Duration { return 0 }} {
		e := Experiment{Spec: spec(number("echo 1"), 12, "a", "b"), Place: &shell{}, Apart: apart}
		if err := e.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if said := e.Record.Summarise().Rows[1].Doubts; len(said) > 0 {
			t.Errorf("of doubts is said %q", said)
		}
	}
}

// Only pairs whose runs are alike in how far CPUs were from each other are left.
func TestRatioOfPairsThatAreAlike(t *testing.T) {
	r := Record{Spec: Spec{Confidence: 0.95}}
	for i, apart := range [][2]time.Duration{{50, 60}, {320, 50}, {330, 320}, {70, 50}} {
		r.Runs = append(r.Runs, Run{Round: i, Program: "p", Target: "a", Apart: apart[0], Figures: map[string]float64{"v": []float64{2, 9, 4, 6}[i]}},
			Run{Round: i, Program: "p", Target: "b", Apart: apart[1], Figures: map[string]float64{"v": []float64{1, 1, 2, 3}[i]}})
	}
	if v, err := r.AlikeRatio("p", "v", "a", "b"); err != nil || v.Value != 2 || v.Samples != 3 {
		t.Errorf("%v, %v", v, err)
	}
}
