package qemu

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pagurus/act/host"
	"pagurus/act/host/passage"
	"pagurus/act/qemu/qmp"
	"pagurus/fleet"
	"pagurus/internal/fault"
)

// Timing of the watch over a copy.
const (
	copyPollEvery = 25 * time.Millisecond
	tellEvery     = 200 * time.Millisecond
	undoLimit     = 20 * time.Second
)

// unlimited is the bandwidth of a copy without a limit. QEMU's default of 128 MiB/s is
// far below today's networks.
const unlimited = 1 << 40

// mostDowntime is QEMU's maximum. It lets QEMU send all that is left of a suspended
// guest, which dirties no more memory.
const mostDowntime = 2000 * time.Second

// Copy sends a guest's memory to Task.Listen while it runs, and returns when it has
// converged. QEMU continues the copy until Switch. If nothing was left to copy, one before 8.1 has
// already suspended the guest. A repeated call for the same migration continues to watch.
// After an error the copy is cancelled and the guest runs.
func (d *Driver) Copy(ctx context.Context, t fleet.Task, progress func(fleet.Progress)) error {
	if d.config.Converged == nil {
		return fmt.Errorf("copy guest %s: nothing decides when a copy is good enough", t.Guest.ID)
	}
	g, q, err := d.here(ctx, t.Guest.ID)
	if err != nil {
		return fmt.Errorf("copy guest %s: %w", t.Guest.ID, err)
	}
	d.keepStill(g.ID)
	if err := d.beginCopy(ctx, g, q, t); err != nil {
		d.letGoOf(g.ID)
		d.pairOn(g)
		return fmt.Errorf("copy guest %s: %w", t.Guest.ID, err)
	}
	if err = fault.Point("qemu.copy.after-begin"); err == nil {
		err = d.followCopy(ctx, g, q, progress)
	}
	if err != nil {
		defer d.letGoOf(g.ID)
		return fmt.Errorf("copy guest %s: %w", t.Guest.ID, d.undo(ctx, g, q, err))
	}
	return nil
}

// beginCopy makes QEMU start the copy, unless it is running. After an error it is not
// running.
func (d *Driver) beginCopy(ctx context.Context, g *guest, q *qmp.Client, t fleet.Task) error {
	if err := g.streaming.Await(ctx, g.Died); err != nil {
		return err
	}
	defer g.streaming.Unlock()
	if g.Remembered().Saving.underWay() {
		return errSaving
	}
	place, err := passage.ParsePlace(t.Listen)
	if err != nil {
		return err
	}
	if place.Address, err = d.Toward(place.Address); err != nil {
		return err
	}
	info, err := queryMigrate(ctx, q)
	if err != nil {
		return err
	}
	order := copying{Migration: t.Order.Migration, Listen: t.Listen, Limits: t.Limits}
	if c := g.Remembered().Copy; c != nil && c.Migration == order.Migration && c.Listen == order.Listen {
		switch {
		case info.underWay():
			return g.Remember(func(r *record) { r.Copy.Begun = true })
		case c.Begun && !g.hasLeft(info):
			return fmt.Errorf("the copy was cancelled: %w", info.cause())
		case c.Begun:
			return nil // and switched since
		}
	}
	if info.underWay() {
		ending, cancel := context.WithTimeout(ctx, undoLimit) // ctx covers a whole copy
		err := d.cancelCopy(ending, g, q)
		cancel()
		if err != nil {
			return fmt.Errorf("cancel an earlier copy: %w", err)
		}
	}
	if status, err := vmStatus(ctx, q); err != nil || status != vmRunning {
		return errors.Join(err, fmt.Errorf("it does not run here: it is %s", status))
	}
	if err := g.Remember(func(r *record) { r.Copy = &order }); err != nil {
		return err
	}
	waits, err := prepareSource(ctx, q.Do, wayOf(t.Limits), d.bandwidth(t.Limits))
	if err != nil {
		return err
	}
	if err := d.pairOff(ctx, g, q); err != nil {
		return err
	}
	address, err := d.connect(ctx, g, q, place, t)
	if err != nil {
		return err
	}
	if err = q.Do(ctx, "migrate", map[string]any{"uri": address}, nil); err == nil {
		err = g.Remember(func(r *record) { r.Copy.Begun, r.Copy.Waits = true, waits })
	}
	if refused := (*qmp.Error)(nil); err == nil || errors.As(err, &refused) {
		return err
	}
	return d.undo(ctx, g, q, err)
}

// undo cancels a copy because of err. It has its own time limit, because ctx may be the
// cause.
func (d *Driver) undo(ctx context.Context, g *guest, q *qmp.Client, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	return errors.Join(err, d.cancelCopy(ctx, g, q))
}

// bandwidth is a copy's limit in bytes a second.
func (d *Driver) bandwidth(l fleet.Limits) int64 {
	most := int64(unlimited)
	for _, limit := range []int64{l.BytesPerSecond, d.config.MaxBandwidth} {
		if limit > 0 {
			most = min(most, limit)
		}
	}
	return wayOf(l).Ceiling(most)
}

// followCopy watches a copy until it converges. After an error it may still be running.
func (d *Driver) followCopy(ctx context.Context, g *guest, q *qmp.Client, progress func(fleet.Progress)) error {
	events, stop := q.Subscribe()
	defer stop()
	limits, waits := g.Remembered().Copy.Limits, g.Remembered().Copy.Waits
	hold := newPace(d.bandwidth(limits))
	var stall stallGuard
	var rounds []fleet.Progress
	var told time.Time
	for {
		info, err := queryMigrate(ctx, q)
		if err != nil {
			return err
		}
		p := info.progress()
		if now := time.Now(); now.Sub(told) >= tellEvery {
			told = now
			progress(p)
		}
		switch info.Status {
		case stateGate, stateDevice, stateCompleted, statePostCopy, statePostCopyDevice, statePostCopyPaused, statePostCopyRecover:
			progress(p)
			if limits.AwaitGang && info.Status == stateGate { // as on a busy host: it was suspended between two looks
				return d.holdWhole(g, hold)
			}
			return nil
		case stateSetup, stateUnplug, stateActive:
		default:
			return info.cause()
		}
		if len(rounds) == 0 || p.Rounds > rounds[len(rounds)-1].Rounds {
			// The remaining bytes at the start of a pass are those dirtied during the
			// last one. Later in the pass they mean nothing.
			rounds = append(rounds, p)
			progress(p) // every pass at its start, however short
			good, err := d.config.Converged(limits, rounds)
			if good && limits.AwaitGang {
				if err = setPace(ctx, q, hold, p, true); err == nil {
					err = d.holdWhole(g, hold)
				}
			}
			if err != nil || good {
				return err
			}
		}
		if limits.AwaitGang && !waits {
			if err := setPace(ctx, q, hold, p, false); err != nil {
				return err
			}
		}
		if err := stall.Check(p, time.Now()); err != nil {
			return err
		}
		if err := g.wait(ctx, events, copyPollEvery); err != nil {
			return err
		}
	}
}

// holdWhole keeps a copy that is complete until the gang is, for this agent and the next.
func (d *Driver) holdWhole(g *guest, hold *pacer) error {
	err := g.Remember(func(r *record) { r.Copy.Good = true })
	if err == nil {
		d.holdCopy(g, hold, g.Remembered().Copy.Migration)
	}
	return err
}

// wait returns after a time, or earlier on an event from QEMU.
func (g *guest) wait(ctx context.Context, events <-chan qmp.Event, most time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-g.Died:
		return errors.New("qemu ended")
	case _, ok := <-events:
		if !ok {
			return errors.New("the connection to qemu ended")
		}
	case <-time.After(most):
	}
	return nil
}

// settleLimit: after a failed copy QEMU soon resumes the guest by itself.
const settleLimit = 500 * time.Millisecond

// run resumes a suspended guest.
func (g *guest) run(ctx context.Context, q *qmp.Client) error {
	for begun, asked := time.Now(), false; ; {
		status, err := vmStatus(ctx, q)
		if err != nil || status == vmRunning {
			return err
		}
		rests := status == vmPaused || status == vmPostMigrate
		if passed := time.Since(begun); !asked && rests && passed > settleLimit {
			asked = true
			if err := q.Do(ctx, "cont", nil, nil); err != nil {
				return err
			}
		} else if passed > undoLimit {
			return fmt.Errorf("it does not run: it is %s", status)
		}
		if err := g.wait(ctx, nil, brief); err != nil {
			return err
		}
	}
}

// Switch suspends a copied guest, sends the rest, and returns when the target has all of
// it. A repeated call gives the same answer. After an error that wraps fleet.ErrUnsure
// call it again; after any other the target certainly does not have the guest, and Resume
// resumes it here.
//
// lead is called before the guest is suspended. Frames that arrive meanwhile are read by
// the guest here or at the target.
func (d *Driver) Switch(ctx context.Context, t fleet.Task, lead func(away bool)) (fleet.Progress, error) {
	d.align(ctx, t)
	lead(true)
	p, err := d.switchOver(ctx, t)
	if err != nil {
		return fleet.Progress{}, fmt.Errorf("switch guest %s: %w", t.Guest.ID, err)
	}
	return p, nil
}

// align waits until QEMU is about to send again, if the copy has a bandwidth limit.
// Members of a gang skip it, so that they are suspended together.
func (d *Driver) align(ctx context.Context, t fleet.Task) {
	g, q, err := d.here(ctx, t.Guest.ID)
	if err != nil {
		return // Switch reports it
	}
	if c := g.Remembered().Copy; c != nil && !c.Limits.AwaitGang && c.Limits.Mode != fleet.StopAndCopy && d.bandwidth(c.Limits) < unlimited {
		align(ctx, func() (int64, bool) {
			info, err := queryMigrate(ctx, q)
			return info.RAM.Sent, err == nil && info.Status == stateActive
		})
	}
}

func (d *Driver) switchOver(ctx context.Context, t fleet.Task) (fleet.Progress, error) {
	g, q, err := d.here(ctx, t.Guest.ID)
	if err != nil {
		// An earlier call may have completed before QEMU ended.
		return fleet.Progress{}, fmt.Errorf("%w; %w", err, fleet.ErrUnsure)
	}
	c := g.Remembered().Copy
	if c == nil || !c.Begun || c.Past || c.Migration != t.Order.Migration {
		return fleet.Progress{}, fmt.Errorf("there is no copy of migration %q under way", t.Order.Migration)
	}
	hurry(g.Remembered().Process.PID)
	if c.Limits.AwaitGang {
		if err := d.letGo(ctx, g, q, c.Limits); err != nil {
			return fleet.Progress{}, fmt.Errorf("%w: %w", err, fleet.ErrUnsure)
		}
	}
	info, err := d.complete(ctx, g, q, c.Limits)
	if err != nil {
		return fleet.Progress{}, err
	}
	p := info.progress()
	if c.SuspendedAt.IsZero() {
		// QEMU counts from its own last step, which is after the suspension.
		g.Mu.Lock()
		if c.SuspendedAt = g.stoppedAt; !c.SuspendedAt.IsZero() {
			c.Downtime = max(p.Downtime, time.Since(c.SuspendedAt))
		} else { // an agent died between the suspension and now
			c.SuspendedAt, c.Downtime = time.Now().Add(-p.Downtime), p.Downtime
		}
		g.Mu.Unlock()
		if err := g.Remember(func(r *record) { r.Copy.SuspendedAt, r.Copy.Downtime = c.SuspendedAt, c.Downtime }); err != nil {
			d.config.Log.Warn("the switch could not be recorded", "guest", g.ID, "cause", err)
		}
	}
	p.SuspendedAt, p.Downtime = c.SuspendedAt, c.Downtime
	return p, nil
}

// drainLimit is how long a guest may take to read its queued frames before it is
// suspended. QEMU needs some hundred microseconds of CPU.
const drainLimit = 20 * time.Millisecond

// suspendForSwitch suspends the guest once it has read its queued frames. The overlay forwards
// later ones to the target.
func (g *guest) suspendForSwitch(ctx context.Context, q *qmp.Client) error {
	for end := time.Now().Add(drainLimit); time.Now().Before(end) && host.Unread(g.handle, firstFile); {
		time.Sleep(drainLimit / 100)
	}
	return q.Do(ctx, "stop", nil, nil)
}

// complete finishes a running copy. Only what QEMU reports as failed has certainly
// failed: otherwise the target may have the guest. Over a dead connection QEMU would wait
// for a quarter of an hour, as TCP does, so it is made to fail. In post-copy it is not,
// because that could end the guest.
func (d *Driver) complete(ctx context.Context, g *guest, q *qmp.Client, l fleet.Limits) (migration, error) {
	unsure := func(err error) (migration, error) { return migration{}, fmt.Errorf("%w: %w", err, fleet.ErrUnsure) }
	events, stop := q.Subscribe()
	defer stop()
	watch, yanked, parted := newPulseWatch(l), false, time.Time{}
	bear := func(err error) error {
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			err = watch.Silent(err, time.Now())
		}
		if !errors.Is(err, errDeadLine) || yanked || l.Mode == fleet.PostCopy {
			return err
		}
		d.config.Log.Warn("a switch gets nowhere; its connection is cut", "guest", g.ID, "cause", err)
		yanked, watch = true, newPulseWatch(l) // so that QEMU reports the failure
		return yank(ctx, q.Urge)
	}
	for halted, continued := false, false; ; {
		info, err := queryMigrate(ctx, q)
		heard := err == nil
		if heard {
			err = watch.Heard(info.progress(), time.Now())
		}
		if err = bear(err); err != nil {
			return unsure(err)
		}
		if !heard {
			continue
		}
		switch info.Status {
		case stateCompleted:
			if info.TotalTime > 0 { // QEMU computes the totals a moment after completion
				return info, nil
			}
		case stateSetup, stateActive:
			if !halted {
				halted = true
				err = g.finish(ctx, q, l.Mode)
			}
		case stateGate:
			if !continued {
				continued = true
				err = passGate(ctx, q)
			}
		case stateDevice, statePostCopyDevice:
			if l.Mode == fleet.PostCopy && g.dropped(ctx, q) {
				return migration{}, errDropped
			}
		case statePostCopy, statePostCopyPaused, statePostCopyRecover:
			if parted.IsZero() {
				parted = time.Now()
			}
			if info.handedOver(parted) {
				return info, nil
			}
		default:
			return migration{}, info.cause()
		}
		if err == nil {
			err = g.wait(ctx, events, copyPollEvery/5)
		}
		if err = bear(err); err != nil {
			return unsure(err)
		}
	}
}

// passGate lets QEMU through the gate: the point of no return. The guest is suspended already.
// From now on the target lacks the guest only if QEMU reports a failure.
func passGate(ctx context.Context, q *qmp.Client) error {
	if err := fault.Point("qemu.switch.before-continue"); err != nil {
		return err
	}
	if err := q.Do(ctx, "migrate-continue", map[string]any{"state": stateGate}, nil); err != nil {
		// A refusal means that the state has changed: check again.
		if refused := (*qmp.Error)(nil); !errors.As(err, &refused) {
			return err
		}
	}
	return fault.Point("qemu.switch.after-continue")
}

// Resume resumes a suspended guest: at a target that has all of it, or at a source whose
// switch certainly failed. It cancels a running copy. It is not an error if the guest runs
// already. Resume is refused at a source if the guest is at the target, because QEMU would let
// both run.
func (d *Driver) Resume(ctx context.Context, id fleet.GuestID) error {
	err := d.resume(ctx, id)
	d.letGoOf(id)
	if err != nil {
		return fmt.Errorf("resume guest %s: %w", id, err)
	}
	return nil
}

func (d *Driver) resume(ctx context.Context, id fleet.GuestID) error {
	g, q, err := d.here(ctx, id)
	if err != nil {
		return err
	}
	if g.Remembered().Target {
		if err := g.arrive(ctx, q); err != nil {
			return err
		}
		d.pairOn(g)
		return nil
	}
	info, err := queryMigrate(ctx, q)
	if err != nil {
		return err
	}
	switch {
	case g.hasLeft(info):
		return errors.New("it is with the target of a migration that cannot be undone")
	case g.dropped(ctx, q):
		return fmt.Errorf("%w; %w", errDropped, fleet.ErrAbsent)
	case g.Remembered().Saving.underWay():
		return d.resumeSaving(ctx, g, q)
	case info.underWay():
		return d.cancelCopy(ctx, g, q)
	}
	if err := d.swap(id, false); err != nil { // it may have been suspended for its host's owner
		return err
	}
	if err := g.run(ctx, q); err != nil {
		return err
	}
	d.pairOn(g)
	return nil
}

// arrive resumes the guest at a target that has all of it, or in post-copy all but its
// memory.
func (g *guest) arrive(ctx context.Context, q *qmp.Client) error {
	status, info, err := g.stateCame(ctx, q, g.Remembered().PostCopy)
	if err != nil {
		return err
	}
	if status != vmRunning {
		if status != vmPaused || info.Status != stateCompleted && !info.parted() {
			return fmt.Errorf("%w: it is %s, the migration is %s", fleet.ErrNotWhole, status, info.Status)
		}
		if err := fault.Point("qemu.resume.before"); err != nil {
			return err
		}
		if err := q.Do(ctx, "cont", nil, nil); err != nil {
			return err
		}
		if err := g.run(ctx, q); err != nil {
			return err
		}
	}
	return g.Remember(func(r *record) { r.Target = false })
}
