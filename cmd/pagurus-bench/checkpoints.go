package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"pagurus/bench"
)

// checkpointEvery is how often the job's state is kept; more often than anybody would have it.
const checkpointEvery = time.Minute

// checkpoints compares how long LAMMPS runs in two containers without checkpoints, and with one every minute: the
// stops, and what hosts take of the processors to copy, compress and send.
func (b *experiments) checkpoints(ctx context.Context) error {
	if _, err := b.Type(ctx, "image", "build", "lammps"); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.Dir, "in.liquid"), []byte(liquid), 0o644); err != nil {
		return err
	}
	var trial time.Duration
	for range 2 { // the first run of an image is slow
		said, _, err := b.kept(ctx, trialSteps)
		if err != nil {
			return err
		}
		if trial, err = loopTime(said); err != nil {
			return err
		}
	}
	steps := int(trialSteps * runTime.Seconds() / trial.Seconds())
	arm := func(name string, least int, flags ...string) bench.Arm {
		return bench.Seconds(name, func(ctx context.Context) (time.Duration, error) {
			_, j, err := b.kept(ctx, steps, flags...)
			if err == nil && len(j.stops) < least {
				err = fmt.Errorf("%d checkpoints were kept in %s, and at least %d are due", len(j.stops), j.took, least)
			}
			for _, stop := range j.stops {
				b.Sample("run_checkpoint_stop_s", stop.Seconds())
			}
			return j.took, err
		})
	}
	err := b.InTurn(ctx, nil, arm("run_without_checkpoints", 0), arm("run_with_checkpoints", 1, "--checkpoint", fmt.Sprintf("every=%s,keep=2", checkpointEvery)))
	return errors.Join(err, b.Ratio("LAMMPS in containers with a checkpoint every minute / without", "run_with_checkpoints_s", "run_without_checkpoints_s", 1.02))
}

// keptRun is how long a run took, and how long each of the checkpoints that were kept stopped it.
type keptRun struct {
	took  time.Duration
	stops []time.Duration
}

// kept runs LAMMPS for so many steps in two containers.
func (b *experiments) kept(ctx context.Context, steps int, flags ...string) (said string, run keptRun, err error) {
	words := append([]string{"--kind", "container", "-n", "2", "--guests", "2", "--mem", "384M", "--image", "lammps", "--on", "host1,host2"}, flags...)
	said, j, err := b.ToEnd(ctx, "Step", func(string) error { return nil },
		append(words, "--", "lmp", "-in", "in.liquid", "-log", "none", "-var", "steps", strconv.Itoa(steps))...)
	if err != nil {
		return said, run, err
	}
	run.took = j.Ended.Sub(j.Started)
	s, err := b.Snapshot(ctx)
	for _, c := range s.Checkpoints {
		if c.Job == j.ID && c.WasKept {
			run.stops = append(run.stops, c.Stop())
		}
	}
	return said, run, err
}
