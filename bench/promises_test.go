package bench

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

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
	order := ""
	for i := range 3 {
		if err := InTurn(i, func() error { order += "a"; return nil }, func() error { order += "b"; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if order != "abbaab" {
		t.Errorf("the order is %s", order)
	}
	sorry := errors.New("sorry")
	if err := InTurn(0, func() error { return sorry }, func() error { t.Error("went on"); return nil }); !errors.Is(err, sorry) {
		t.Error(err)
	}
}

func TestFiguresThatAreNotAsPromisedAreNamed(t *testing.T) {
	r := NewPromises(drive.Pagurus{}, 2)
	for i := range 2 {
		r.Sample("ours", 2+0.01*float64(i))
		r.Sample("theirs", 1)
	}
	err := errors.Join(
		r.Ratio("ratio", "ours", "theirs", 1.5), r.Mean("mean", "ours", 2.5),
		r.Beside("  beside", "theirs", "ours"),
	)
	if err != nil || len(r.Missed) != 1 || r.Missed[0] != "ratio" {
		t.Errorf("missed are %q, %v", r.Missed, err)
	}
	r.AtLeast("least", r.Record.Figures["ratio"], 1.5)
	if f := r.Record.Figures["beside"]; f.Value > 0.5 || r.Record.Floors["least"] != 1.5 {
		t.Errorf("the record has %v", r.Record)
	}
	if err := r.Ratio("ratio", "ours", "nobody's", 1); err == nil {
		t.Error("a ratio to nothing")
	}
}

func TestARecordMakesItsFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dist", "bench.json")
	r := NewPromises(drive.Pagurus{}, 2)
	if err := r.KeepRecord(file); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("an empty record is kept")
	}
	r.Sample("a", 1)
	if err := r.KeepRecord(file); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file); err != nil {
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
		r.Record.Sittings = append(r.Record.Sittings, Sitting{Commit: "a"})
		r.Sample("took", float64(sitting))
		if len(r.Record.Samples["took"]) != sitting || len(r.Record.Sittings) != sitting {
			t.Errorf("sitting %d has %+v", sitting, r.Record)
		}
		if err := r.KeepRecord(file); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, []byte(`{"samples": null}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r := NewPromises(drive.Pagurus{}, 1)
	if err := r.Continue(file); err != nil {
		t.Error(err)
	}
	r.Sample("took", 1) // of a record with nothing in it
	if err := os.WriteFile(file, []byte(`{"samples": 3`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := NewPromises(drive.Pagurus{}, 1).Continue(file); err == nil {
		t.Error("half a record was gone on with")
	}
}

// The records that are kept are read and written with the same meaning.
func TestKeptRecords(t *testing.T) {
	files, err := filepath.Glob("../docs/figures/*.json")
	if err != nil || len(files) < 9 {
		t.Fatalf("%q, %v", files, err)
	}
	meaning := func(file string) (m struct {
		Sittings, Samples, Figures, Limits, Floors any
	}) {
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, &m)
		}
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, file := range files {
		was := meaning(file)
		if was.Samples == nil {
			continue // chaos keeps one, too, and it is none of these
		}
		r := NewPromises(drive.Pagurus{}, 1)
		out := filepath.Join(t.TempDir(), "bench.json")
		if err := errors.Join(r.Continue(file), r.KeepRecord(out)); err != nil {
			t.Errorf("%s: %v", file, err)
		} else if is := meaning(out); !reflect.DeepEqual(is, was) {
			t.Errorf("%s has become %v, was %v", file, is, was)
		}
	}
}
