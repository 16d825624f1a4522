package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"pagurus/act/container/memory"
	"pagurus/fleet"
	"pagurus/internal/fault"
)

// Resume makes a suspended guest run: at a target that has the whole guest, or at a
// source whose switch certainly failed. A running copy is cancelled. It is not an error
// if the guest runs already. Resume is refused at a source if the target has or may have
// the guest, because both would run.
func (d *Driver) Resume(ctx context.Context, id fleet.GuestID) error {
	err := d.resume(ctx, id)
	if err != nil {
		return fmt.Errorf("resume guest %s: %w", id, err)
	}
	return nil
}

func (d *Driver) resume(ctx context.Context, id fleet.GuestID) error {
	g, err := d.here(id)
	if err != nil {
		return err
	}
	if g.Remembered().Target {
		return d.arriveAt(g)
	}
	if c := g.Remembered().Copy; c != nil && c.Left {
		return errors.New("it is with the target of a migration that cannot be undone")
	}
	if err := d.rouse(g); err != nil {
		return err
	}
	if c := g.Remembered().Copy; c.saves() && !c.Suspended {
		return nil // and its checkpoint is not interrupted
	}
	g.interrupt()
	ctx, done := g.move(ctx)
	defer done()
	c := g.Remembered().Copy
	if c.saves() {
		return d.void(g, nil, errors.New("the guest was resumed before it was told to continue"))
	}
	if c != nil && c.Asked && !c.Left {
		if _, err := d.settled(ctx, g); err == nil || g.Remembered().Copy.Asked {
			return errors.Join(errors.New("it may be with the target of its migration"), err)
		}
	}
	if c == nil {
		return nil
	}
	if c.Left {
		return errors.New("it is with the target of a migration that cannot be undone")
	}
	if err := g.cancelCopy(); err != nil {
		return err
	}
	if !c.Suspended {
		return nil
	}
	if err := c.end(); err != nil { // before the guest changes its lazy pages
		return err
	}
	if err := d.thaw(g); err != nil {
		return err
	}
	return g.Remember(func(r *record) { r.Copy.Suspended = false })
}

// arriveAt resumes the guest at a target that has all of it.
func (d *Driver) arriveAt(g *guest) error {
	r := g.Remembered()
	g.Mu.Lock()
	t := g.target
	g.Mu.Unlock()
	switch {
	case t != nil && t.making.Load():
		return errors.New("it is still being restored")
	case !r.Arrived:
		return fmt.Errorf("%w: %s", fleet.ErrNotWhole, cmp.Or(r.Failure, "the rest has not come"))
	}
	if err := fault.Point("container.resume.before"); err != nil {
		return err
	}
	// The guest runs before its waiting frames are delivered. The kernel needs about 10
	// ms to let the guest run, and the first frames arrive at once.
	err := d.atHost(func() error {
		err := r.Port.Mend()
		if err == nil && t == nil { // frames that an earlier agent held are lost with it
			err = r.Port.Free()
		}
		return err
	})
	if err == nil {
		var failed error
		failed, err = memory.Calls(r.Calls, func() error { return d.config.Cgroups.Thaw(g.ID) })
		if failed != nil {
			d.config.Log.Warn("programs of a guest have lost what only they can set (personality)", "guest", g.ID, "cause", failed)
		}
	}
	ran := time.Now()
	if err == nil && t != nil {
		err = d.atHost(t.frameQueue.Deliver)
	}
	if err != nil {
		return err
	}
	if err := g.Remember(func(r *record) { r.Target, r.RanAt, r.Calls = false, ran, nil }); err != nil {
		return err
	}
	// The guest's other tasks need not wait for the end of the queue.
	if t != nil && d.guests.Go(func() {}, t.close) != nil {
		t.close()
	}
	return nil
}

// RanAgain returns when a guest that arrived here was resumed, or the zero time if none
// did.
func (d *Driver) RanAgain(id fleet.GuestID) time.Time {
	g, err := d.here(id)
	if err != nil {
		return time.Time{}
	}
	return g.Remembered().RanAt
}
