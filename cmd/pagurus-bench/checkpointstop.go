package main

import (
	"context"
	"errors"
	"fmt"

	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/fleet"
)

// How long a checkpoint may stop a job of four ranks: a virtual machine writes while its guest runs, and
// a container's memory is copied first.
const (
	machineStop   = 0.050 // s
	containerStop = 0.5
)

// checkpointStop has a coupled job of each kind, four ranks in four guests, make checkpoints one after another, and
// notes how long each stopped the guest that was stopped longest. The first writes all of the job's memory, and
// those after it what is new in it.
func (b *experiments) checkpointStop(ctx context.Context) error {
	if err := b.compile(ctx, "openmpi", "tight", "mpicc", "-O2"); err != nil {
		return err
	}
	if err := errors.Join(b.stopped(ctx, fleet.VM, "vm"), b.stopped(ctx, fleet.Container, "container")); err != nil {
		return err
	}
	return errors.Join(
		b.Mean("seconds that a checkpoint stops four virtual machines", "vm_stop_s", machineStop),
		b.Mean("seconds that a checkpoint stops four containers", "container_stop_s", containerStop),
		b.Beside("bytes of a virtual machines' checkpoint that are new, after the first / all", "vm_later_new_bytes", "vm_later_bytes"),
		b.Beside("bytes of a containers' checkpoint that are new, after the first / all", "container_later_new_bytes", "container_later_bytes"),
	)
}

// stopped has a job of a kind make checkpoints.
func (b *experiments) stopped(ctx context.Context, kind fleet.Kind, name string) error {
	return b.computes(ctx, func(job string) error {
		var made []fleet.CheckpointID
		return b.Rounds(ctx, max(b.Repeat, 1)+1, nil, bench.Arm{Name: name, Measure: func(ctx context.Context) (map[string]float64, error) {
			if err := drive.Pause(ctx, settleTime); err != nil {
				return nil, err
			}
			if len(made) > 1 { // a user may keep a few
				if _, err := b.Type(ctx, "checkpoint", "rm", string(made[len(made)-2])); err != nil {
					return nil, err
				}
			}
			if _, err := b.Type(ctx, "checkpoint", job, "--wait"); err != nil {
				return nil, err
			}
			c, err := b.lastCheckpoint(ctx, fleet.JobID(job))
			if err == nil && c.Stop() == 0 {
				err = fmt.Errorf("checkpoint %s does not say how long it stopped the job", c.ID)
			}
			made = append(made, c.ID)
			all, fresh := c.Bytes()
			figures := map[string]float64{"stop_s": c.Stop().Seconds()}
			if len(made) > 1 {
				figures["later_bytes"], figures["later_new_bytes"] = float64(all), float64(fresh)
			}
			return figures, err
		}})
	}, shape{kind, gangSize, ourTimeout}.coupled()...)
}

// lastCheckpoint is the newest one of a job, which is kept.
func (b *experiments) lastCheckpoint(ctx context.Context, job fleet.JobID) (last fleet.Checkpoint, err error) {
	s, err := b.Snapshot(ctx)
	for _, c := range s.Checkpoints {
		if c.Job == job && c.WasKept && c.Begun.After(last.Begun) {
			last = c
		}
	}
	if err == nil && last.ID == "" {
		err = fmt.Errorf("no checkpoint of %s was kept", job)
	}
	return last, err
}
