package container

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"pagurus/act/container/sandbox"
	"pagurus/act/container/transfer"
	"pagurus/act/host/written"
	"pagurus/fleet"
	"pagurus/internal/fault"
)

// Restore makes a guest from a folder that a checkpoint was written to, on this or another host.
// It is suspended until Resume. What its programs wrote behind the ends of the job's files after
// the checkpoint is cut off. If the guest was restored in this generation, Restore does nothing.
// After an error nothing of the guest is left, unless it was here already: then it is not touched.
func (d *Driver) Restore(ctx context.Context, t fleet.Task, folder string) error {
	return d.guests.Restore(ctx, t.Guest.ID, t.Guest.Gen, func() error { return d.restore(ctx, t, folder) })
}

func (d *Driver) restore(ctx context.Context, t fleet.Task, folder string) error {
	a, state, err := openCheckpoint(folder)
	if err != nil {
		return err
	}
	defer state.Close()
	in, err := d.makePlace(ctx, t, func(r *record) error {
		r.Restored = true
		return a.suits(*r, d.visible.Flags)
	})
	if err != nil {
		return err
	}
	if err := in.replay(a, state, written.Owner{UID: t.Job.Spec.UID, GID: t.Job.Spec.GID, Groups: t.Job.Spec.Groups}); err != nil {
		return err
	}
	if err := fault.Point("container.restore.after-build"); err != nil {
		return err
	}
	return in.guest.Remember(func(r *record) { r.Complete = true })
}

// makePlace makes what holds a guest's place until the guest is here, and a target for it.
// prepare completes the new record, or refuses the guest.
func (d *Driver) makePlace(ctx context.Context, t fleet.Task, prepare func(*record) error) (*target, error) {
	anchored := sync.OnceValues(sandbox.NewAnchor)
	go anchored() // meanwhile
	r, err := d.furnish(ctx, t)
	r.Target = true
	if err == nil {
		err = prepare(&r)
	}
	var in *target
	if err == nil {
		in, err = d.ready(ctx, r)
	}
	defer func() {
		if in != nil && in.guest == nil { // no target was made for it
			in.close()
		}
	}()
	anchor, failed := anchored()
	if failed != nil {
		return nil, errors.Join(err, failed)
	}
	defer anchor.Release() // until Stay the anchor ends with this process
	if err != nil {
		return nil, errors.Join(err, anchor.Kill())
	}
	g, err := d.occupy(r, anchor.PID)
	if err != nil {
		return nil, errors.Join(err, anchor.Kill())
	}
	if err := anchor.Stay(); err != nil {
		return nil, err
	}
	if err := fault.Point("container.start.after-spawn"); err != nil {
		return nil, err
	}
	return in, in.expect(g)
}

// replay makes a target's guest from a checkpoint.
func (t *target) replay(a about, state *os.File, user written.Owner) error {
	lacks, err := t.needs(a.Agent)
	if err != nil {
		return err
	}
	in, restoring, err := t.open(lacks)
	if err != nil {
		return err
	}
	defer in.Close()
	defer restoring.Close()
	if a.Agent != "" && !lacks {
		in.Agent = nowhere{io.Discard} // this host has it
	}
	if err := transfer.Replay(in, state, a.Bytes, a.Sum); err != nil {
		return err
	}
	if in.Agent != nil {
		return errors.New("the checkpoint is damaged: it does not have the guest agent")
	}
	if _, err := a.Back(t.guest.Remembered().writable(), user); err != nil {
		return err
	}
	return t.build(in, restoring)
}

// nowhere is a file that keeps nothing.
type nowhere struct{ io.Writer }

// Close does nothing.
func (nowhere) Close() error { return nil }
