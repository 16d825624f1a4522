package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/bench/stats"
	"pagurus/decide/cost"
	"pagurus/fleet"
)

// Programs for fitting are not those for scoring: predictions have to be right for programs
// that never moved.
var (
	fitting = []string{"idle", "sweep", "scatter", "tail"}
	scoring = []string{"matmul", "jacobi", "sorting", "burst", "table", "journal"}
	// ceilings span a factor of four; with a faster link the machine's
	// processors would be the limit.
	ceilings = []string{"24M", "48M", "96M"}
)

// What is promised of predictions.
const (
	totalError    = 0.15
	downtimeError = 0.30
	covered       = 0.85
	leastScored   = 60 // moves, of all scored programs, at all ceilings
	// mostRepeats is how often each scored program moves at each ceiling at most: 144 moves are
	// enough, even if other experiments are repeated more often.
	mostRepeats = 8
)

// predict moves guests with different programs at different ceilings. For the scored programs
// it compares the cost with the predictions of a model that has seen only the others.
func (b *experiments) predict(ctx context.Context) error {
	if err := b.compile(ctx, "openmpi", "programs", "gcc", "-O2", "-Wl,--no-as-needed", "-lm"); err != nil {
		return err
	}
	repeats := min(b.Repeat, mostRepeats)
	seen, err := b.moveEach(ctx, b.chosenOf(fitting), repeats/2)
	if err != nil {
		return err
	}
	moved, err := b.moveEach(ctx, b.chosenOf(scoring), repeats)
	if err != nil {
		return err
	}
	fmt.Printf("  as the controller predicted the %d scored ones, learning as it went: %s\n", len(moved), scored(cost.Score(moved)))
	for i, m := range moved {
		moved[i] = predictBlind(seen, m)
		b.printMove(moved[i]) // once more, by the other model
		if p := moved[i].Predicted; m.Phase == fleet.Finished && p.Converges {
			b.Sample("predicted_total_s", p.Total.Value.Seconds())
			b.Sample("total_s", cost.Total(m).Seconds())
			b.Sample("predicted_downtime_s", p.Downtime.Value.Seconds())
			b.Sample("downtime_s", m.Cost.Downtime.Seconds())
		}
	}
	fmt.Printf("  by a model that has seen only %d moves of other programs: %s\n", len(seen), scored(cost.Score(moved)))
	for _, of := range []struct {
		name  string
		limit float64
		said  func(fleet.Migration) fleet.Range[time.Duration]
		got   func(fleet.Migration) time.Duration
	}{
		{"total time", totalError, func(m fleet.Migration) fleet.Range[time.Duration] { return m.Predicted.Total }, cost.Total},
		{"downtime", downtimeError, func(m fleet.Migration) fleet.Range[time.Duration] { return m.Predicted.Downtime },
			func(m fleet.Migration) time.Duration { return m.Cost.Downtime }},
	} {
		off, inside, err := errorAndCoverage(moved, of.said, of.got)
		if err != nil {
			return fmt.Errorf("predictions of %s: %w", of.name, err)
		}
		b.AtMost("median error of "+of.name, off, of.limit)
		b.AtLeast("in the 90 % interval of "+of.name, inside, covered)
	}
	if few := b.tooFew(moved); few != "" && len(b.chosen) == 0 {
		fmt.Println("  too few to tell: " + few)
		b.Missed = append(b.Missed, "predictions were scored on "+few)
	}
	return nil
}

// scorable returns the moves whose cost can be compared with a prediction: the same that
// cost.Score counts.
func scorable(moved []fleet.Migration) []fleet.Migration {
	return slices.DeleteFunc(slices.Clone(moved), func(m fleet.Migration) bool {
		return m.Phase != fleet.Finished || !m.Predicted.Converges || m.Cost.SentBytes <= 0
	})
}

// errorAndCoverage returns the median error of predictions, relative to the outcome, and the
// share of outcomes inside their intervals. The intervals of these two assume independent
// moves, and moves of one program are more alike than that.
func errorAndCoverage(moved []fleet.Migration, said func(fleet.Migration) fleet.Range[time.Duration], got func(fleet.Migration) time.Duration) (off, inside stats.Interval, err error) {
	var errs []float64
	hits := 0
	for _, m := range scorable(moved) {
		p, g := said(m), got(m)
		if g <= 0 || p.Value <= 0 {
			continue // it was not measured
		}
		errs = append(errs, math.Abs(float64(p.Value-g))/float64(g))
		if p.Low <= g && g <= p.High {
			hits++
		}
	}
	if off, err = stats.Median(errs, bench.Confidence); err != nil {
		return off, inside, err
	}
	inside, err = stats.Proportion(hits, len(errs), bench.Confidence)
	return off, inside, err
}

// tooFew says how many moves the promised figures need, if there are fewer; empty: enough.
func (b *experiments) tooFew(moved []fleet.Migration) string {
	of, at := map[string]bool{}, map[int64]bool{}
	all := scorable(moved)
	for _, m := range all {
		of[b.names[m.Job]], at[m.Predicted.Limits.BytesPerSecond] = true, true
	}
	if len(all) >= leastScored && len(of) >= len(scoring) && len(at) >= len(ceilings) {
		return ""
	}
	return fmt.Sprintf("%d moves of %d programs at %d ceilings, where %d of %d at %d are promised", len(all), len(of), len(at), leastScored, len(scoring), len(ceilings))
}

// chosenOf leaves out programs that were not chosen.
func (b *experiments) chosenOf(all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return len(b.chosen) > 0 && !slices.Contains(b.chosen, name) })
}

func scored(c fleet.Calibration) string {
	return fmt.Sprintf("%d moves, total %.0f %% off in the median (%.0f %% in their interval), downtime %.0f %% (%.0f %%), bytes %.0f %% (%.0f %%), %d of %d converged or not as said",
		c.Moves, 100*c.Total.MedianError, 100*c.Total.Coverage, 100*c.Downtime.MedianError, 100*c.Downtime.Coverage,
		100*c.Bytes.MedianError, 100*c.Bytes.Coverage, c.Right, c.Verdicts)
}

// predictBlind predicts a past move again from what was known when it began, by a model that
// has learnt from the seen moves alone.
func predictBlind(seen []fleet.Migration, m fleet.Migration) fleet.Migration {
	old := *m.Predicted
	p := cost.Fit(seen, cost.Subject{Kind: old.Kind, Job: m.Job, Guest: m.Guest, From: m.From, To: m.To, ForOwner: old.ForOwner}).
		Predict(*old.Profile, cost.Link{Limits: old.Limits, Share: old.Share})
	p.Kind, p.Profile = old.Kind, old.Profile
	m.Predicted = &p
	return m
}

// printMove prints one move's prediction and outcome.
func (b *experiments) printMove(m fleet.Migration) {
	p, total := m.Predicted, cost.Total(m)
	fmt.Printf("  %-8s %3d MiB/s %-8s total %6.2f s, said %6.2f (%.2f-%.2f); downtime %4d ms, said %4d (%d-%d); %4d MiB, said %4d; converges: %t\n",
		b.names[m.Job], p.Limits.BytesPerSecond>>20, m.Phase, total.Seconds(), p.Total.Value.Seconds(), p.Total.Low.Seconds(), p.Total.High.Seconds(),
		m.Cost.Downtime.Milliseconds(), p.Downtime.Value.Milliseconds(), p.Downtime.Low.Milliseconds(), p.Downtime.High.Milliseconds(),
		m.Cost.SentBytes>>20, p.Bytes.Value>>20, p.Converges)
}

// moveEach runs each program in a guest of its own and moves it to and fro, so many times at
// every ceiling.
func (b *experiments) moveEach(ctx context.Context, names []string, times int) (out []fleet.Migration, _ error) {
	for _, name := range names {
		err := b.computes(ctx, func(job string) error {
			b.names[fleet.JobID(job)] = name
			var arms []bench.Arm
			for _, c := range ceilings {
				arms = append(arms, bench.Arm{Name: name + " at " + c, Measure: func(ctx context.Context) (map[string]float64, error) {
					m, err := b.moveUnderCeiling(ctx, job+"g0", c)
					if err != nil {
						return nil, err
					}
					b.printMove(m)
					out = append(out, m)
					return map[string]float64{"total_s": cost.Total(m).Seconds(), "downtime_s": m.Cost.Downtime.Seconds()}, nil
				}})
			}
			return b.Rounds(ctx, times, nil, arms...)
		}, "-n", "1", "--mem", "256M", "--image", "openmpi", "--on", "host1", "--", "./programs", name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return out, nil
}

// moveUnderCeiling samples a guest, moves it under a ceiling, and returns the migration. One
// that did not converge is not an error.
func (b *experiments) moveUnderCeiling(ctx context.Context, guest, ceiling string) (fleet.Migration, error) {
	none := fleet.Migration{}
	s, err := b.Snapshot(ctx)
	if err != nil {
		return none, err
	}
	to := "host2"
	if s.Guests[fleet.GuestID(guest)].Home == "host2" {
		to = "host1"
	}
	if _, err := b.Type(ctx, "predict", guest, "--to", to); err != nil {
		return none, err
	}
	// The profile reaches the controller with the host's next facts.
	if err := drive.Pause(ctx, 1500*time.Millisecond); err != nil {
		return none, err
	}
	id, err := b.Type(ctx, "migrate", guest, "--to", to, "--mode", "pre-copy", "--bandwidth", ceiling)
	if err != nil {
		return none, err
	}
	for {
		if err := drive.Pause(ctx, 200*time.Millisecond); err != nil {
			return none, err
		}
		if s, err = b.Snapshot(ctx); err != nil {
			return none, err
		}
		v, ok := s.Moves[fleet.MoveID(id)]
		if !ok || len(v.Migrations) == 0 {
			return none, fmt.Errorf("move %s is not known any more", id)
		}
		if v.Ended.IsZero() {
			continue
		}
		m := s.Migrations[v.Migrations[0]]
		if m.Predicted == nil || m.Predicted.Profile == nil {
			return none, fmt.Errorf("move %s was not predicted from a profile of %s", id, guest)
		}
		b.Record.Moves = append(b.Record.Moves, m)
		return m, nil
	}
}
