package qemu

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pagurus/act/host"
	"pagurus/act/qemu/qmp"
	"pagurus/fleet"
	"pagurus/internal/fault"
)

// How a copy is watched.
const (
	copyPollEvery = 25 * time.Millisecond
	tellEvery     = 200 * time.Millisecond
	undoLimit     = 20 * time.Second
)

// unlimited is what QEMU is told when a copy has no ceiling: its own default
// of 128 MiB/s is far below what any network of today carries.
const unlimited = 1 << 40

// leastDowntime keeps QEMU from stopping the guest of its own accord. It is
// not 0: QEMU 7.2 then never looks again at what is dirty, and stops the guest
// after the first pass with everything dirtied since still to be sent.
const leastDowntime = time.Millisecond

// mostDowntime, the most QEMU takes, lets it send whatever is left of a guest
// that is suspended: it dirties no more.
const mostDowntime = 2000 * time.Second

// Copy sends a guest's memory to Task.Listen while it runs, and returns when
// what is left is small. QEMU goes on copying until Switch; if nothing at all
// was left to copy, it has paused the guest already. Called again for the same
// migration it watches on. After an error the copy is cancelled and the guest
// runs on.
func (d *Driver) Copy(ctx context.Context, t fleet.Task, progress func(fleet.Progress)) error {
	if d.config.Converged == nil {
		return fmt.Errorf("copy guest %s: nothing decides when a copy is good enough", t.Guest.ID)
	}
	g, q, err := d.here(ctx, t.Guest.ID)
	if err != nil {
		return fmt.Errorf("copy guest %s: %w", t.Guest.ID, err)
	}
	if err := d.beginCopy(ctx, g, q, t); err != nil {
		return fmt.Errorf("copy guest %s: %w", t.Guest.ID, err)
	}
	if err = fault.Point("qemu.copy.after-begin"); err == nil {
		err = d.followCopy(ctx, g, q, progress)
	}
	if err != nil {
		return fmt.Errorf("copy guest %s: %w", t.Guest.ID, g.undo(ctx, q, err))
	}
	return nil
}

// beginCopy makes QEMU copy, unless it does so already. After an error it does
// not.
func (d *Driver) beginCopy(ctx context.Context, g *guest, q *qmp.Client, t fleet.Task) error {
	address, err := streamAddress(t.Listen)
	if err != nil {
		return err
	}
	info, err := queryMigrate(ctx, q)
	if err != nil {
		return err
	}
	order := copying{Migration: t.Order.Migration, Listen: t.Listen, Limits: t.Limits}
	if c := g.remembered().Copy; c != nil && c.Migration == order.Migration && c.Listen == order.Listen {
		switch {
		case info.underWay():
			return g.remember(func(r *record) { r.Copy.Begun = true })
		case c.Begun && !g.hasLeft(info):
			return fmt.Errorf("the copy was cancelled: %w", info.cause())
		case c.Begun:
			return nil // and switched since
		}
	}
	if info.underWay() {
		ending, cancel := context.WithTimeout(ctx, undoLimit) // ctx is that of a whole copy
		err := g.cancelCopy(ending, q)
		cancel()
		if err != nil {
			return fmt.Errorf("cancel an earlier copy: %w", err)
		}
	}
	if status, err := vmStatus(ctx, q); err != nil || status != vmRunning {
		return errors.Join(err, fmt.Errorf("it does not run here: it is %s", status))
	}
	if err := g.remember(func(r *record) { r.Copy = &order }); err != nil {
		return err
	}
	if err := prepareStream(ctx, q.Do, wayOf(t.Limits)); err != nil {
		return err
	}
	if err := q.Do(ctx, "migrate-set-parameters", map[string]any{
		"max-bandwidth": d.bandwidth(t.Limits), "max-postcopy-bandwidth": d.bandwidth(t.Limits), "downtime-limit": leastDowntime.Milliseconds(),
	}, nil); err != nil {
		return err
	}
	if err = q.Do(ctx, "migrate", map[string]any{"uri": address}, nil); err == nil {
		err = g.remember(func(r *record) { r.Copy.Begun = true })
	}
	if refused := (*qmp.Error)(nil); err == nil || errors.As(err, &refused) {
		return err
	}
	return g.undo(ctx, q, err)
}

// undo calls a copy off because of err, in time of its own: ctx may be why.
func (g *guest) undo(ctx context.Context, q *qmp.Client, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	return errors.Join(err, g.cancelCopy(ctx, q))
}

// bandwidth is what a copy may use, in bytes a second.
func (d *Driver) bandwidth(l fleet.Limits) int64 {
	most := int64(unlimited)
	for _, limit := range []int64{l.BytesPerSecond, d.config.MaxBandwidth} {
		if limit > 0 {
			most = min(most, limit)
		}
	}
	return wayOf(l).Ceiling(most)
}

// followCopy watches a copy until it is good enough. After an error it may still
// be under way.
func (d *Driver) followCopy(ctx context.Context, g *guest, q *qmp.Client, progress func(fleet.Progress)) error {
	events, stop := q.Subscribe()
	defer stop()
	limits := g.remembered().Copy.Limits
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
			return nil
		case stateSetup, stateActive:
		default:
			return info.cause()
		}
		if len(rounds) == 0 || p.Rounds > rounds[len(rounds)-1].Rounds {
			// What is left at the beginning of a pass is what was dirtied
			// during the last one. Later in the pass it says nothing.
			rounds = append(rounds, p)
			progress(p) // each pass as it begins, however short
			good, err := d.config.Converged(limits, rounds)
			if good && limits.AwaitGang {
				err = errors.Join(setPace(ctx, q, hold, p, true), g.remember(func(r *record) { r.Copy.Good = true }))
				if err == nil {
					d.holdCopy(g, q, hold, g.remembered().Copy.Migration)
				}
			}
			if err != nil || good {
				return err
			}
		}
		if limits.AwaitGang {
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

// wait returns after a while, at the latest when QEMU says something.
func (g *guest) wait(ctx context.Context, events <-chan qmp.Event, most time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-g.died:
		return errors.New("qemu ended")
	case _, ok := <-events:
		if !ok {
			return errors.New("the connection to qemu ended")
		}
	case <-time.After(most):
	}
	return nil
}

// settleLimit: QEMU lets a guest run again by itself soon after a copy that
// did not come to its end.
const settleLimit = 500 * time.Millisecond

// run lets a paused guest run.
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

// Switch stops a guest that was copied, sends what is left, and returns when
// the target has it whole. Called again it says the same again. After an error
// that wraps fleet.ErrUnsure it is to be called again; after any other the
// target surely has not the guest, and Resume lets it run on here.
//
// lead is called before the guest is paused: what comes meanwhile it reads, or the
// target does.
func (d *Driver) Switch(ctx context.Context, t fleet.Task, lead func(away bool)) (fleet.Progress, error) {
	d.align(ctx, t)
	lead(true)
	p, err := d.switchOver(ctx, t)
	if err != nil {
		return fleet.Progress{}, fmt.Errorf("switch guest %s: %w", t.Guest.ID, err)
	}
	return p, nil
}

// align waits until QEMU is about to send again, if a ceiling bounds the copy. Of a gang
// the members are to stop at one time, whatever that costs each.
func (d *Driver) align(ctx context.Context, t fleet.Task) {
	g, q, err := d.here(ctx, t.Guest.ID)
	if err != nil {
		return // the switch says it
	}
	if c := g.remembered().Copy; c != nil && !c.Limits.AwaitGang && c.Limits.Mode != fleet.StopAndCopy && d.bandwidth(c.Limits) < unlimited {
		align(ctx, func() (int64, bool) {
			info, err := queryMigrate(ctx, q)
			return info.RAM.Sent, err == nil && info.Status == stateActive
		})
	}
}

func (d *Driver) switchOver(ctx context.Context, t fleet.Task) (fleet.Progress, error) {
	g, q, err := d.here(ctx, t.Guest.ID)
	if err != nil {
		// An earlier call may have come to its end before QEMU ended.
		return fleet.Progress{}, fmt.Errorf("%w; %w", err, fleet.ErrUnsure)
	}
	c := g.remembered().Copy
	if c == nil || !c.Begun || c.Migration != t.Order.Migration {
		return fleet.Progress{}, fmt.Errorf("there is no copy of migration %q under way", t.Order.Migration)
	}
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
		// QEMU counts from its own last step, which is after the guest stopped.
		g.mu.Lock()
		if c.SuspendedAt = g.stoppedAt; !c.SuspendedAt.IsZero() {
			c.Downtime = max(p.Downtime, time.Since(c.SuspendedAt))
		} else { // an agent died between the pause and now
			c.SuspendedAt, c.Downtime = time.Now().Add(-p.Downtime), p.Downtime
		}
		g.mu.Unlock()
		if err := g.remember(func(r *record) { r.Copy.SuspendedAt, r.Copy.Downtime = c.SuspendedAt, c.Downtime }); err != nil {
			d.config.Log.Warn("remember the switch", "guest", g.id, "error", err)
		}
	}
	p.SuspendedAt, p.Downtime = c.SuspendedAt, c.Downtime
	return p, nil
}

// drainLimit is how long a guest may take to read what has come for it before
// it is stopped: QEMU needs some hundred microseconds when it gets a processor.
const drainLimit = 20 * time.Millisecond

// halt stops the guest once it has read what came for it. What comes from now on
// the overlay leads to the target.
func (g *guest) halt(ctx context.Context, q *qmp.Client) error {
	for end := time.Now().Add(drainLimit); time.Now().Before(end) && host.Unread(g.handle, firstFile); {
		time.Sleep(drainLimit / 100)
	}
	return q.Do(ctx, "stop", nil, nil)
}

// complete drives a copy under way to its end. Only what QEMU itself calls failed is
// known to have failed: whatever else goes wrong, the target may have the guest. Over a
// dead line QEMU would wait for a quarter of an hour, as TCP does: it is made to fail,
// but not by post-copy, where that can be the end of the guest.
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
		d.config.Log.Warn("a switch gets nowhere; its connection is cut", "guest", g.id, "cause", err)
		yanked, watch = true, newPulseWatch(l) // for QEMU to say so
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
			if info.TotalTime > 0 { // QEMU adds up a moment after it says so
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
				err = pass(ctx, q)
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

// pass lets QEMU through the gate: the point of no return. The guest stands
// still at this host, and from here on only a failure by QEMU's own word means
// that the target has not got it.
func pass(ctx context.Context, q *qmp.Client) error {
	if err := fault.Point("qemu.switch.before-continue"); err != nil {
		return err
	}
	if err := q.Do(ctx, "migrate-continue", map[string]any{"state": stateGate}, nil); err != nil {
		// A refusal means that the state is another by now: look again.
		if refused := (*qmp.Error)(nil); !errors.As(err, &refused) {
			return err
		}
	}
	return fault.Point("qemu.switch.after-continue")
}

// Resume lets a paused guest run: a target that has it whole, or a source
// whose switch surely failed; a copy still under way is cancelled. A guest
// that runs is not an error. A source whose guest is with the target is refused:
// QEMU would let both run.
func (d *Driver) Resume(ctx context.Context, id fleet.GuestID) error {
	err := d.resume(ctx, id)
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
	info, err := queryMigrate(ctx, q)
	if err != nil {
		return err
	}
	if g.remembered().Target {
		return g.arrive(ctx, q, info)
	}
	switch {
	case g.hasLeft(info):
		return errors.New("it is with the target of a migration that cannot be undone")
	case g.dropped(ctx, q):
		return fmt.Errorf("%w; %w", errDropped, fleet.ErrAbsent)
	case info.underWay():
		return g.cancelCopy(ctx, q)
	}
	return g.run(ctx, q)
}

// arrive lets a target run that has the guest whole, or, by post-copy, all of it
// but memory.
func (g *guest) arrive(ctx context.Context, q *qmp.Client, info migration) error {
	status, err := vmStatus(ctx, q)
	if err == nil && g.remembered().PostCopy {
		status, info, err = g.stateCame(ctx, q)
	}
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
	return g.remember(func(r *record) { r.Target = false })
}
