package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/decide/cost"
	"pagurus/fleet"
)

// scoredMove is a move that took 10 s where so many were predicted.
func scoredMove(n int, said time.Duration) fleet.Migration {
	at := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	around := func(d time.Duration) fleet.Range[time.Duration] {
		return fleet.Range[time.Duration]{Value: d, Low: d - d/10, High: d + d/10}
	}
	return fleet.Migration{
		ID: fleet.MigrationID(fmt.Sprintf("m%d", n)), Job: fleet.JobID(fmt.Sprintf("j%d", n%6)), Phase: fleet.Finished,
		Entered:   []fleet.Entered{{Phase: fleet.Preparing, At: at}, {Phase: fleet.Finished, At: at.Add(10 * time.Second)}},
		Cost:      fleet.Progress{SentBytes: 1, Downtime: 10 * time.Millisecond},
		Predicted: &fleet.Prediction{Converges: true, Total: around(said), Downtime: around(10 * time.Millisecond), Limits: fleet.Limits{BytesPerSecond: int64(1 + n/6%3)}},
	}
}

// What is printed with an interval is what `pagurus predict --score` says
// without one.
func TestPredictionsAreHeldAgainstOutcomes(t *testing.T) {
	var moved []fleet.Migration
	for n := range 60 {
		moved = append(moved, scoredMove(n, time.Duration(8+n%10)*time.Second))
	}
	late := scoredMove(60, time.Second)
	late.Predicted.Converges = false
	gone := scoredMove(61, time.Second)
	gone.Phase = fleet.Aborted
	moved = append(moved, late, gone)
	off, inside, err := errorAndCoverage(moved, func(m fleet.Migration) fleet.Range[time.Duration] { return m.Predicted.Total }, cost.Total)
	if err != nil {
		t.Fatal(err)
	}
	c := cost.Score(moved)
	if math.Abs(off.Value-c.Total.MedianError) > 1e-9 || math.Abs(inside.Value-c.Total.Coverage) > 1e-9 || off.Samples != 60 || inside.Samples != 60 {
		t.Errorf("%s off, %s inside; the score is %+v", off, inside, c.Total)
	}
	if !(off.Low < off.Value && off.Value < off.High) || !(inside.Low < inside.Value && inside.Value < inside.High) {
		t.Errorf("%s, %s", off, inside)
	}
	if _, _, err := errorAndCoverage(nil, nil, nil); err == nil {
		t.Error("nothing has a median")
	}
}

func TestTooFewMovesAreSaid(t *testing.T) {
	b := newExperiments()
	var moved []fleet.Migration
	for n := range 60 {
		m := scoredMove(n, 10*time.Second)
		b.names[m.Job] = scoring[n%6]
		moved = append(moved, m)
	}
	if few := b.tooFew(moved); few != "" {
		t.Errorf("60 of 6 at 3: %s", few)
	}
	for name, left := range map[string][]fleet.Migration{
		"59 moves":     moved[:59],
		"of 5 prog":    slices.DeleteFunc(slices.Concat(moved, moved), func(m fleet.Migration) bool { return m.Job == "j3" }),
		"at 2 ceiling": slices.DeleteFunc(slices.Concat(moved, moved), func(m fleet.Migration) bool { return m.Predicted.Limits.BytesPerSecond == 2 }),
	} {
		if few := b.tooFew(left); !strings.Contains(few, name) {
			t.Errorf("%s: %q", name, few)
		}
	}
}

// A prediction has to be right about a program that never moved.
func TestProgramsForFittingAreNotScored(t *testing.T) {
	for _, name := range scoring {
		if slices.Contains(fitting, name) {
			t.Errorf("%s is fitted and scored", name)
		}
	}
	text, err := sources.ReadFile("programs/programs.c")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Concat(fitting, scoring) {
		if !strings.Contains(string(text), fmt.Sprintf("{ %q, ", name)) {
			t.Errorf("there is no program %s", name)
		}
	}
}
