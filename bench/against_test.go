package bench

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"pagurus/bench/drive"
	"pagurus/bench/stats"
)

// gives is a build each of whose turns gives samples of one figure.
func gives(commit, figure string, turns ...[]float64) Build {
	return givesOf("trial", commit, figure, turns...)
}

func givesOf(trial, commit, figure string, turns ...[]float64) Build {
	return Build{commit, func(context.Context) (*Record, error) {
		r := NewPromises(drive.Pagurus{}, 1)
		r.Trial = trial
		for _, v := range turns[0] {
			r.Sample("move_"+figure, v)
		}
		turns = turns[1:]
		return &r.Record, nil
	}}
}

// Samples of a turn are one pair with those of the other commit's turn, whatever the order of the turns.
func TestCommitsTakeTurns(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bench.json")
	for sitting := range 2 { // the second adds to what the first has kept
		r := NewPromises(drive.Pagurus{}, 1)
		r.Trial, r.File = "trial", file
		if err := r.Continue(file); err != nil {
			t.Fatal(err)
		}
		this, that := gives("new", "s", []float64{1, 4}, []float64{3, 12}), gives("0d52e18", "s", []float64{1, 1}, []float64{3, 3})
		if err := r.Against(t.Context(), 2, this, that); err != nil {
			t.Fatal(err)
		}
		got := r.Record.Changes(Tolerance)
		if len(got) != 1 {
			t.Fatalf("changes are %v", got)
		}
		c := got[0]
		if c.Part != "trial" || c.Sample != "move_s" || c.Commit != "0d52e18" || math.Abs(c.Ratio.Value-2) > 1e-9 || c.Ratio.Samples != 2*(sitting+1) ||
			math.Abs(c.Was-math.Sqrt(3)) > 1e-9 || math.Abs(c.Is-2*math.Sqrt(3)) > 1e-9 {
			t.Errorf("sitting %d: %+v", sitting, c)
		}
		if !c.Worse() {
			t.Errorf("twice as long is not worse: %s", c)
		}
	}
	kept, err := Load(file)
	if err != nil || len(kept.Runs) != 16 || kept.Runs[15].Turn != 4 || kept.Guests["move"].Beside != "move of 0d52e18" {
		t.Errorf("kept is %+v, %v", kept, err)
	}
	// A record's page pairs the same.
	for _, row := range kept.Summarise().Rows {
		if row.Target == "move" && (row.Base != "move of 0d52e18" || row.Ratio == nil || math.Abs(row.Ratio.Value-2) > 1e-9) {
			t.Errorf("its page says %+v", row)
		}
	}
}

// Of a pair of which one failed nothing is kept, and the error names the commit.
func TestATurnThatFails(t *testing.T) {
	r := NewPromises(drive.Pagurus{}, 1)
	r.Trial = "trial"
	sorry := Build{"0d52e18", func(context.Context) (*Record, error) { return nil, errors.New("sorry") }}
	err := r.Against(t.Context(), 2, gives("new", "s", []float64{1}, []float64{1}), sorry)
	if err == nil || err.Error() != "trial of 0d52e18: sorry" || len(r.Record.Runs) != 0 {
		t.Errorf("%v, kept is %v", err, r.Record.Runs)
	}
}

func TestAPartIsMeasuredAgain(t *testing.T) {
	r := NewPromises(drive.Pagurus{}, 1)
	for _, r.Trial = range []string{"a", "b"} {
		if err := r.Against(t.Context(), 1, givesOf(r.Trial, "new", "s", []float64{1}), givesOf(r.Trial, "old", "s", []float64{1})); err != nil {
			t.Fatal(err)
		}
	}
	r.Forget("a")
	if len(r.Record.Runs) != 2 || r.Record.Runs[0].Program != "b" || len(r.Record.Changes(Tolerance)) != 1 {
		t.Errorf("left is %+v", r.Record.Runs)
	}
}

func TestWhatBecameOfAFigure(t *testing.T) {
	change := func(sample string, low, value, high float64) Change {
		return Change{Part: "container-small", Sample: sample, Commit: "0d52e18", Tolerance: 1.1, Ratio: stats.Interval{Low: low, Value: value, High: high, Samples: 8}}
	}
	for _, c := range []struct {
		of    Change
		says  string
		worse bool
	}{
		{change("suspended_s", 0.97, 1.02, 1.08), "container-small suspended_s: 1.02 × (0.97 to 1.08) of 0d52e18: no difference seen", false},
		{change("suspended_s", 0.8, 1.02, 1.3), "container-small suspended_s: 1.02 × (0.80 to 1.30) of 0d52e18: no difference seen, but more turns may show one", false},
		{change("suspended_s", 1.11, 1.2, 1.3), "container-small suspended_s: 1.20 × (1.11 to 1.30) of 0d52e18: SLOWER, surely by more than the 1.1 × that are tolerated", true},
		{change("sent_bytes", 1.11, 1.2, 1.3), "container-small sent_bytes: 1.20 × (1.11 to 1.30) of 0d52e18: MORE, surely by more than the 1.1 × that are tolerated", true},
		{change("suspended_s", 1.05, 1.2, 1.3), "container-small suspended_s: 1.20 × (1.05 to 1.30) of 0d52e18: SLOWER, but not surely by more than 1.1 ×", false},
		{change("suspended_s", 0.5, 0.6, 0.7), "container-small suspended_s: 0.60 × (0.50 to 0.70) of 0d52e18: faster", false},
		{Change{Part: "idle", Sample: "cpu_percent", Commit: "0d52e18", Failure: "sorry"}, "idle cpu_percent: no ratio to 0d52e18: sorry", false},
	} {
		if got := c.of.String(); !strings.EqualFold(got, c.says) || c.of.Worse() != c.worse {
			t.Errorf("%s (worse: %t)\nwant\n%s", got, c.of.Worse(), c.says)
		}
	}
}

// A figure of 0, as of processor time that is counted in hundredths of a second, has no ratio; nor has one turn.
func TestWhatHasNoRatio(t *testing.T) {
	for name, turns := range map[string][][]float64{"zero": {{0, 0}, {0, 1}}, "one turn": {{1, 1}}} {
		r := NewPromises(drive.Pagurus{}, 1)
		r.Trial = "trial"
		if err := r.Against(t.Context(), len(turns), gives("new", "percent", turns...), gives("old", "percent", turns...)); err != nil {
			t.Fatal(err)
		}
		if got := r.Record.Changes(Tolerance); len(got) != 1 || got[0].Failure == "" || got[0].Worse() {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// Of what a part compares only the chosen arms are measured. What looks at all of them has nothing to look at.
func TestChosenArms(t *testing.T) {
	r := NewPromises(drive.Pagurus{}, 2)
	r.Trial, r.Arms, r.Unjudged = "trial", []string{"a"}, true
	arm := func(name string) Arm {
		return Arm{name, func(context.Context) (map[string]float64, error) { return map[string]float64{"s": 1}, nil }}
	}
	then := func() { t.Error("it looked at what is not there") }
	err := errors.Join(r.InTurn(t.Context(), then, arm("a"), arm("b")), r.InTurn(t.Context(), then, arm("c")), r.Ratio("a / b", "a_s", "b_s", 1), r.Mean("b", "b_s", 1))
	if !r.Chosen("b", "a") || r.Chosen("b", "c") || !(&Promises{}).Chosen("c") {
		t.Error("other arms are chosen")
	}
	if err != nil || len(r.Samples("a_s")) != 2 || len(r.Record.Runs) != 2 || len(r.Record.Promised) != 0 {
		t.Errorf("%v, %+v", err, r.Record)
	}
}

// An arm that cannot be measured, because something is lacking, is left out and named. Others are measured; another failure ends all.
func TestLackingArms(t *testing.T) {
	r := NewPromises(drive.Pagurus{}, 2)
	r.Trial, r.Unjudged = "trial", true
	r.Lacks = func(failure string) string {
		if strings.Contains(failure, "unknown flag: --b") {
			return "--b"
		}
		return ""
	}
	arm := func(name string, err error) Arm {
		return Arm{name, func(context.Context) (map[string]float64, error) { return map[string]float64{"s": 1}, err }}
	}
	lacking := arm("b", errors.New("pagurus: unknown flag: --b"))
	err := errors.Join(r.InTurn(t.Context(), nil, lacking, arm("a", nil)), r.InTurn(t.Context(), nil, lacking))
	if err != nil || len(r.Samples("a_s")) != 2 || len(r.Record.Runs) != 2 || len(r.Left) != 2 || r.Left[0] != "trial b, which lacks --b" {
		t.Errorf("%v, %q, %+v", err, r.Left, r.Record.Runs)
	}
	if err := r.InTurn(t.Context(), nil, arm("a", nil), arm("c", errors.New("the disk is full"))); err == nil || !strings.Contains(err.Error(), "c: the disk is full") {
		t.Errorf("another failure: %v", err)
	}
	r.Lacks = nil
	if err := r.InTurn(t.Context(), nil, lacking, arm("a", nil)); err == nil {
		t.Error("this commit lacks something, and nobody hears of it")
	}
	// What one of two commits gave alone is not kept.
	all := NewPromises(drive.Pagurus{}, 2)
	all.keepTurn(&Record{Spec: Spec{Targets: []string{"a", "b"}}, Runs: []Run{{Program: "trial", Target: "a"}, {Program: "trial", Target: "b"}}}, &Record{Runs: []Run{{Program: "trial", Target: "a"}}}, "0d52e18e")
	if len(all.Record.Runs) != 2 || all.Record.Guests["b"].Beside != "" || all.Record.Guests["a"].Beside != "a of 0d52e18e" {
		t.Errorf("%+v, %+v", all.Record.Runs, all.Record.Guests)
	}
}
