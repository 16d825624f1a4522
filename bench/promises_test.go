package bench

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/bench/drive"
	"pagurus/bench/stats"
)

func TestVerdictIsOnTheEstimate(t *testing.T) {
	for _, c := range []struct {
		v           stats.Interval
		limit, sign float64
		says        string
		missed      bool
	}{
		{stats.Interval{Value: 1, Low: 0.9, High: 1.1}, 1.25, 1, "within the promised 1.25", false},
		{stats.Interval{Value: 1.2, Low: 1, High: 1.4}, 1.25, 1, "within the promised 1.25 (interval reaches above)", false},
		{stats.Interval{Value: 1.3, Low: 1, High: 1.6}, 1.25, 1, "ABOVE the promised 1.25", true},
		{stats.Interval{Value: 0.99, Low: 0.97, High: 1.6}, 0.95, -1, "within the promised 0.95", false},
		{stats.Interval{Value: 0.99, Low: 0.9, High: 1.6}, 0.95, -1, "within the promised 0.95 (interval reaches below)", false},
		{stats.Interval{Value: 0.9, Low: 0.8, High: 1.6}, 0.95, -1, "BELOW the promised 0.95", true},
	} {
		if text, missed := verdict(c.v, c.limit, c.sign); text != c.says || missed != c.missed {
			t.Errorf("%v: %q, %t", c.v, text, missed)
		}
	}
}

func TestSidesTakeTurns(t *testing.T) {
	order, rounds := "", 0
	arm := func(name string) Arm {
		return Seconds(name, func(context.Context) (time.Duration, error) { order += name; return time.Second, nil })
	}
	r := NewPromises(drive.Pagurus{}, 4)
	r.Trial, r.File = "trial", filepath.Join(t.TempDir(), "bench.json")
	if err := r.InTurn(t.Context(), func() { rounds++ }, arm("a"), arm("b")); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains([]string{"abbaabba", "abbabaab", "baababba", "baabbaab"}, order) || rounds != 4 || len(r.Samples("a_s")) != 4 {
		t.Errorf("the order is %s in %d rounds: %v", order, rounds, r.Record.Runs)
	}
	sorry := Seconds("c", func(context.Context) (time.Duration, error) { return 0, errors.New("sorry") })
	if err := r.InTurn(t.Context(), func() { t.Error("went on") }, arm("a"), sorry); err == nil || !strings.Contains(err.Error(), "c: sorry") {
		t.Error(err)
	}
	kept, err := Load(r.File)
	if err != nil || len(kept.Runs) != 8 || kept.Runs[7].Round != 3 {
		t.Errorf("kept is %+v, %v", kept, err)
	}
	ratio := kept.Summarise().Rows[1].Ratio
	if ratio == nil || ratio.Value != 1 {
		t.Errorf("the ratio is %v", ratio)
	}
}

// Where there is no time for all rounds there are two.
func TestRoundsWithinATime(t *testing.T) {
	for limit, want := range map[time.Duration]int{0: 2, time.Hour: 6} {
		r := NewPromises(drive.Pagurus{}, 6)
		r.Trial, r.File = "trial", filepath.Join(t.TempDir(), "bench.json")
		arm := func(name string) Arm {
			return Seconds(name, func(context.Context) (time.Duration, error) { return time.Second, nil })
		}
		if err := r.Within(t.Context(), limit, arm("a"), arm("b")); err != nil {
			t.Fatal(err)
		}
		if len(r.Samples("a_s")) != want || len(r.Samples("b_s")) != want || r.Record.Runs[2*want-1].Round != want-1 {
			t.Errorf("within %s: %+v", limit, r.Record.Runs)
		}
	}
}

func TestFiguresThatAreNotAsPromisedAreNamed(t *testing.T) {
	r := NewPromises(drive.Pagurus{}, 2)
	for i := range 2 {
		r.Sample("ours_s", 2+0.01*float64(i))
		r.Sample("theirs_s", 1)
	}
	err := errors.Join(
		r.Ratio("ratio", "ours_s", "theirs_s", 1.5), r.Mean("mean", "ours_s", 2.5),
		r.Beside("  beside", "theirs_s", "ours_s"),
	)
	if err != nil || len(r.Missed) != 1 || r.Missed[0] != "ratio" {
		t.Errorf("missed are %q, %v", r.Missed, err)
	}
	if err := r.Carry(t.Context(), []Trial{{Name: "trial", Bare: true, Measure: func(context.Context) error { return nil }}}, nil); !errors.Is(err, ErrMissed) || !strings.Contains(err.Error(), ": ratio") {
		t.Errorf("what was measured to its end, and is not as promised: %v", err)
	}
	r.AtLeast("least", r.Record.Promised["ratio"].Interval, 1.5)
	if f := r.Record.Promised["beside"]; f.Value > 0.5 || f.AtMost != nil || *r.Record.Promised["least"].AtLeast != 1.5 {
		t.Errorf("the record has %v", r.Record)
	}
	if err := r.Ratio("ratio", "ours_s", "missing_s", 1); err == nil {
		t.Error("a ratio to nothing")
	}
}

func TestARecordMakesItsFolder(t *testing.T) {
	r := NewPromises(drive.Pagurus{}, 2)
	r.File = filepath.Join(t.TempDir(), "dist", "bench.json")
	if err := r.Save(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(r.File); err == nil {
		t.Error("an empty record is kept")
	}
	r.Sample("a_s", 1)
	if err := r.Save(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(r.File); err != nil {
		t.Error(err)
	}
}

// What is kept is gone on with; a file that is none of its own is refused, and stays.
func TestContinue(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bench.json")
	for sitting := 1; sitting <= 2; sitting++ {
		r := NewPromises(drive.Pagurus{}, 1)
		if err := r.Continue(file); err != nil {
			t.Fatal(err)
		}
		r.Sit("a")
		r.File = file
		r.Sample("took_s", float64(sitting))
		if len(r.Samples("took_s")) != sitting || len(r.Record.Sittings) != sitting {
			t.Errorf("sitting %d has %+v", sitting, r.Record)
		}
		if err := r.Save(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, []byte(`{"version": 1, "runs": null}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r := NewPromises(drive.Pagurus{}, 1)
	if err := r.Continue(file); err != nil {
		t.Error(err)
	}
	r.Sample("took_s", 1) // of a record with nothing in it
	if err := os.WriteFile(file, []byte(`{"version": 1, "runs": 3`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := NewPromises(drive.Pagurus{}, 1).Continue(file); err == nil {
		t.Error("half a record was gone on with")
	}
}

// The records that are kept are read, and written with the same meaning.
func TestKeptRecords(t *testing.T) {
	files, err := filepath.Glob("../docs/figures/*.json")
	if err != nil || len(files) < 9 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, file := range files {
		if filepath.Base(file) == "chaos.json" {
			continue // which is none of these
		}
		if info, err := os.Stat(file); err == nil && testing.Short() && info.Size() > 50_000 {
			continue // the whole run reads it
		}
		r := NewPromises(drive.Pagurus{}, 1)
		r.File = filepath.Join(t.TempDir(), "bench.json")
		if err := errors.Join(r.Continue(file), r.Save()); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		was, err1 := os.ReadFile(file)
		is, err2 := os.ReadFile(r.File)
		if err := errors.Join(err1, err2); err != nil || !bytes.Equal(was, is) {
			t.Errorf("%s has become other than it was: %v", file, err)
		}
		// What holds two ways of one experiment side by side has no promise.
		if beside := len(r.Record.Spec.Targets) > 1 && len(r.Record.Sittings) == 0; len(r.Record.Summarise().Rows) == 0 || len(r.Record.Promised) == 0 && !beside {
			t.Errorf("%s says nothing", file)
		}
	}
}
