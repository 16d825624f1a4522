package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/decide/cost"
	"pagurus/fleet"
)

const (
	// marksSeen is how long the program marks before it is moved: the controller knows by then that it does.
	marksSeen  = 11 * time.Second
	marksPhase = 5 * time.Second // of the program
	marksLimit = time.Minute     // of one move, which waits for marks for 35 s at most
)

// marks compares moves that a program asks for itself, at any moment: of one that marks none, of one that marks when it has filled its
// memory, and of one that says besides that it does not need that memory then.
func (b *experiments) marks(ctx context.Context) error {
	if err := b.compile(ctx, "openmpi", "marks", "gcc", "-O2", "-Wl,--no-as-needed", "-lpagurus"); err != nil {
		return err
	}
	var arms []bench.Arm
	for _, how := range []string{"plain", "marks", "scratch"} {
		arms = append(arms, bench.Arm{Name: how, Measure: func(ctx context.Context) (map[string]float64, error) { return b.selfMoved(ctx, how) }})
	}
	err := b.InTurn(ctx, nil, arms...)
	for _, f := range []struct{ says, figure string }{
		{"bytes sent", "sent"}, {"the program's stall", "stall"}, {"from the first byte to the last", "copy"}, {"total time with the waits", "total"},
	} {
		for _, how := range []struct{ says, arm string }{{"at marks", "marks"}, {"at marks, with scratch memory", "scratch"}} {
			if err == nil {
				err = b.Beside(f.says+", "+how.says+" / at any moment", how.arm+"_"+f.figure, "plain_"+f.figure)
			}
		}
	}
	return err
}

// selfMoved runs the program, has it ask to be moved, and gives what the move cost.
func (b *experiments) selfMoved(ctx context.Context, how string) (figures map[string]float64, err error) {
	away := filepath.Join(b.Dir, "away")
	_ = os.Remove(away)
	err = b.computes(ctx, func(job string) error {
		if err := drive.Pause(ctx, marksSeen+rand.N(marksPhase)); err != nil {
			return err
		}
		begun := time.Now()
		if err := os.WriteFile(away, nil, 0o644); err != nil {
			return err
		}
		m, err := b.movedItself(ctx, fleet.JobID(job))
		if err == nil {
			err = drive.Pause(ctx, quietTime)
		}
		if err != nil {
			return err
		}
		said, err := b.Type(ctx, "logs", job)
		if err != nil {
			return err
		}
		gap, err := drive.LongestGap(said, begun, time.Now())
		figures = map[string]float64{
			"sent": float64(m.Cost.SentBytes), "copy": m.Cost.Elapsed.Seconds(), "total": cost.Total(m).Seconds(), "stall": gap.Took.Seconds(), "downtime": m.Cost.Downtime.Seconds(),
		}
		return err
	}, "--kind", "container", "-n", "1", "--mem", "256M", "--image", "openmpi", "--on", "host1", "--", "./marks", how, "away")
	return figures, err
}

// movedItself waits for the move that a job's program has asked for.
func (b *experiments) movedItself(ctx context.Context, job fleet.JobID) (fleet.Migration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, marksLimit, fmt.Errorf("the program of %s has not been moved within %s", job, marksLimit))
	defer cancel()
	for {
		s, err := b.Snapshot(ctx)
		if err != nil {
			return fleet.Migration{}, err
		}
		for _, m := range s.Migrations {
			if m.Job != job || !m.Phase.Ended() {
				continue
			}
			if m.Phase != fleet.Finished {
				return m, fmt.Errorf("the move of %s ended %s: %s", job, m.Phase, m.Cause)
			}
			b.Record.Moves = append(b.Record.Moves, m)
			return m, nil
		}
		if err := drive.Pause(ctx, 200*time.Millisecond); err != nil {
			return fleet.Migration{}, context.Cause(ctx)
		}
	}
}
