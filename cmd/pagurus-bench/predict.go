package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"pagurus/decide/cost"
	"pagurus/fleet"
	"pagurus/measure/drive"
	"pagurus/measure/stats"
)

//go:embed programs/programs.c
var programs []byte

// Programs for fitting are not those for scoring: a prediction has to be right
// about one that never moved.
var (
	fitting = []string{"idle", "sweep", "scatter", "tail"}
	scoring = []string{"matmul", "jacobi", "sorting", "burst", "table", "journal"}
	// ceilings span a factor of four; a faster link than the last would leave
	// the processors of one machine as what limits all.
	ceilings = []string{"24M", "48M", "96M"}
)

// What is promised of predictions.
const (
	totalError    = 0.15
	downtimeError = 0.30
	uncovered     = 0.15
)

// predict moves guests that run different programs at different ceilings and
// holds what was predicted of the scored ones, by a model that has seen only
// the others, against what they cost.
func (b *bench) predict(ctx context.Context) error {
	if err := os.WriteFile(filepath.Join(b.Dir, "programs.c"), programs, 0o644); err != nil {
		return err
	}
	if _, err := b.Type(ctx, "image", "shell", "openmpi", "--", "gcc", "-O2", "-o", "programs", "programs.c", "-lm"); err != nil {
		return err
	}
	seen, err := b.moveEach(ctx, b.choose(fitting), max(1, b.Repeat/2))
	if err != nil {
		return err
	}
	moved, err := b.moveEach(ctx, b.choose(scoring), b.Repeat)
	if err != nil {
		return err
	}
	fmt.Printf("  as the controller predicted the %d scored ones, learning as it went: %s\n", len(moved), scored(cost.Score(moved)))
	for i, m := range moved {
		moved[i] = strictly(seen, m)
		b.compare(moved[i]) // once more, by the other model
		if p := moved[i].Predicted; m.Phase == fleet.Finished && p.Converges {
			b.Sample("predicted_total_s", p.Total.Value.Seconds())
			b.Sample("total_s", cost.Total(m).Seconds())
			b.Sample("predicted_downtime_s", p.Downtime.Value.Seconds())
			b.Sample("downtime_s", m.Cost.Downtime.Seconds())
		}
	}
	c := cost.Score(moved)
	fmt.Printf("  by a model that has seen only %d moves of other programs: %s\n", len(seen), scored(c))
	b.AtMost("median error of total time", stats.Interval{Value: c.Total.MedianError, Low: c.Total.MedianError, High: c.Total.MedianError}, totalError)
	b.AtMost("median error of downtime", stats.Interval{Value: c.Downtime.MedianError, Low: c.Downtime.MedianError, High: c.Downtime.MedianError}, downtimeError)
	b.AtMost("total times outside of their 90 % interval", stats.Interval{Value: 1 - c.Total.Coverage, Low: 1 - c.Total.Coverage, High: 1 - c.Total.Coverage}, uncovered)
	b.AtMost("downtimes outside of their 90 % interval", stats.Interval{Value: 1 - c.Downtime.Coverage, Low: 1 - c.Downtime.Coverage, High: 1 - c.Downtime.Coverage}, uncovered)
	return nil
}

// choose leaves out programs that were not asked for.
func (b *bench) choose(all []string) []string {
	if len(b.chosen) == 0 {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !slices.Contains(b.chosen, name) })
}

func scored(c fleet.Calibration) string {
	return fmt.Sprintf("%d moves, total %.0f %% off in the median (%.0f %% in their interval), downtime %.0f %% (%.0f %%), bytes %.0f %% (%.0f %%), %d of %d converged or not as said",
		c.Moves, 100*c.Total.MedianError, 100*c.Total.Coverage, 100*c.Downtime.MedianError, 100*c.Downtime.Coverage,
		100*c.Bytes.MedianError, 100*c.Bytes.Coverage, c.Right, c.Verdicts)
}

// strictly predicts a past move anew from what was known when it began, by what
// seen moves teach alone.
func strictly(seen []fleet.Migration, m fleet.Migration) fleet.Migration {
	old := *m.Predicted
	p := cost.Fit(seen, cost.Subject{Kind: old.Kind, Job: m.Job, From: m.From, To: m.To}).
		Predict(*old.Profile, cost.Link{Limits: old.Limits, Share: old.Share})
	p.Kind, p.Profile = old.Kind, old.Profile
	m.Predicted = &p
	return m
}

// compare prints one move's prediction and outcome.
func (b *bench) compare(m fleet.Migration) {
	p, total := m.Predicted, cost.Total(m)
	fmt.Printf("  %-8s %3d MiB/s %-8s total %6.2f s, said %6.2f (%.2f-%.2f); downtime %4d ms, said %4d (%d-%d); %4d MiB, said %4d; converges: %t\n",
		b.names[m.Job], p.Limits.BytesPerSecond>>20, m.Phase, total.Seconds(), p.Total.Value.Seconds(), p.Total.Low.Seconds(), p.Total.High.Seconds(),
		m.Cost.Downtime.Milliseconds(), p.Downtime.Value.Milliseconds(), p.Downtime.Low.Milliseconds(), p.Downtime.High.Milliseconds(),
		m.Cost.SentBytes>>20, p.Bytes.Value>>20, p.Converges)
}

// moveEach runs each program in a guest of its own and moves it at every
// ceiling, so many times, to and fro.
func (b *bench) moveEach(ctx context.Context, names []string, times int) ([]fleet.Migration, error) {
	var out []fleet.Migration
	for _, name := range names {
		moved, err := b.toAndFro(ctx, name, times)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out = append(out, moved...)
	}
	return out, nil
}

func (b *bench) toAndFro(ctx context.Context, name string, times int) (out []fleet.Migration, err error) {
	job, err := b.Type(ctx, "run", "--detach", "-n", "1", "--mem", "256M", "--image", "openmpi", "--on", "host1", "--", "./programs", name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Discard(ctx, job)) }()
	b.names[fleet.JobID(job)] = name
	if err := b.busy(ctx, job); err != nil {
		return nil, err
	}
	for i := range times * len(ceilings) {
		m, err := b.ceiled(ctx, job+"g0", ceilings[i%len(ceilings)])
		if err != nil {
			return nil, err
		}
		b.compare(m)
		out = append(out, m)
	}
	return out, nil
}

// ceiled moves a guest under a ceiling, after a look at it, and gives what is
// known of the move. One that did not converge is no error.
func (b *bench) ceiled(ctx context.Context, guest, ceiling string) (fleet.Migration, error) {
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
	// The look reaches the controller with the host's next facts.
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
			return none, fmt.Errorf("move %s was not predicted from a look at %s", id, guest)
		}
		b.Record.Moves = append(b.Record.Moves, m)
		return m, nil
	}
}
