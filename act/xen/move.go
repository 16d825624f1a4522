package xen

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"pagurus/act/host"
	"pagurus/act/host/passage"
	"pagurus/fleet"
	"pagurus/internal/fault"
)

const followEvery = 200 * time.Millisecond

// Copy sends a guest's memory to Task.Listen while it runs, in the rounds that libxl makes. It returns when they are over and the
// copy has converged by then; the warden holds it, and the guest runs. A repeated call for the same migration continues to
// watch. After an error the copy is cancelled and the guest runs.
func (d *Driver) Copy(ctx context.Context, t fleet.Task, progress func(fleet.Progress)) error {
	err := d.copy(ctx, t, progress)
	if err != nil {
		return fmt.Errorf("copy guest %s: %w", t.Guest.ID, err)
	}
	return nil
}

func (d *Driver) copy(ctx context.Context, t fleet.Task, tell func(fleet.Progress)) error {
	if d.config.Converged == nil {
		return errors.New("nothing decides when a copy is good enough")
	}
	if t.Limits.Mode == fleet.PostCopy || t.Limits.Compress == fleet.CompressOn {
		return errors.New("guests of Xen move in rounds, and not compressed: leave --mode and --compress out")
	}
	g, err := d.here(t.Guest.ID)
	if err != nil {
		return err
	}
	g.moving.Lock()
	defer g.moving.Unlock()
	order, err := d.order(t)
	if err != nil {
		return err
	}
	if c := g.Remembered().Copy; c != nil && c.Migration == order.Migration && c.Past {
		return errors.New("the copy was cancelled")
	}
	if err := g.Remember(func(r *record) {
		r.Copy = &copying{Migration: order.Migration, Place: order.Place, Limits: t.Limits}
	}); err != nil {
		return err
	}
	if _, err = g.ask(ctx, question{Ask: askCopy, Copy: &order}); err == nil {
		err = fault.Point("xen.copy.after-begin")
	}
	if err == nil {
		err = d.followCopy(ctx, g, t, tell)
	}
	if err == nil || g.life.Err() != nil {
		return err // an agent that ends leaves the copy to the next one
	}
	return errors.Join(err, g.undo(ctx))
}

// order says whereto a guest goes, as this host calls it.
func (d *Driver) order(t fleet.Task) (copyOrder, error) {
	place, err := passage.ParsePlace(t.Listen)
	if err != nil {
		return copyOrder{}, err
	}
	if place.Address, err = d.Toward(place.Address); err != nil {
		return copyOrder{}, err
	}
	most := cmp.Or(t.Limits.BytesPerSecond, d.config.MaxBandwidth)
	if d.config.MaxBandwidth > 0 {
		most = min(most, d.config.MaxBandwidth)
	}
	return copyOrder{
		Migration: t.Order.Migration, Place: place.String(), BytesPerSecond: most,
		Move: passage.Move{Guest: t.Guest.ID, Gen: t.Order.Gen, Migration: t.Order.Migration, From: t.Order.Host},
	}, nil
}

// undo cancels a copy. It has its own time limit, because ctx may be the cause.
func (g *guest) undo(ctx context.Context) error {
	_, err := g.ask(context.WithoutCancel(ctx), question{Ask: askCancel})
	return errors.Join(err, g.Remember(func(r *record) { r.Copy.Past = true }))
}

// followCopy watches a copy until its rounds are over, or it has failed.
func (d *Driver) followCopy(ctx context.Context, g *guest, t fleet.Task, tell func(fleet.Progress)) error {
	var rounds []fleet.Progress
	good := false
	for {
		s, err := g.status(ctx)
		if err != nil {
			return err
		}
		c := s.Copy
		switch {
		case c == nil:
			return errors.New("its warden knows of no copy")
		case c.Given:
			return nil // and switched since
		case c.Failure != "":
			return errors.New(c.Failure)
		}
		p := g.progressOf(*c)
		tell(p)
		if len(rounds) == 0 || p.Rounds > rounds[len(rounds)-1].Rounds {
			rounds = append(rounds, p)
			if good, err = d.config.Converged(t.Limits, rounds); err != nil {
				return err
			}
		}
		if c.Held {
			if !good && t.Limits.Mode != fleet.StopAndCopy && p.RemainingBytes > leastLeft {
				return fmt.Errorf("after %d rounds, the most that Xen makes, %d MiB were changed in the last one, too much for the downtime: allow a longer one with --downtime", p.Rounds, p.RemainingBytes>>20)
			}
			return nil
		}
		select {
		case <-g.life.Done():
			return host.ErrClosed
		case <-g.Died:
			return errors.New("its warden has ended")
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(followEvery):
		}
	}
}

// leastLeft is what libxl ends its rounds for.
const leastLeft = 50 << pageBits

// progressOf is a warden's progress for others.
func (g *guest) progressOf(c progress) fleet.Progress {
	return c.of(g.Remembered().Need.MemoryBytes)
}

// of is the progress of a guest of so much memory. In the first round, libxl goes through all addresses that the guest may have, most of
// which are of no memory.
func (c progress) of(memory int64) fleet.Progress {
	p := fleet.Progress{
		Rounds: max(c.Rounds, 1), TotalBytes: memory, RemainingBytes: max(0, c.RoundBytes-c.RoundSent), SentBytes: c.SentBytes,
		Elapsed: c.Elapsed, SuspendedAt: c.SuspendedAt, Downtime: c.Downtime,
	}
	if c.RoundBytes > memory {
		p.RemainingBytes = int64(float64(memory) * (float64(p.RemainingBytes) / float64(c.RoundBytes)))
	}
	if c.Rounds == 0 {
		p.RemainingBytes = p.TotalBytes
	}
	if c.Done {
		p.RemainingBytes = 0
	} else {
		p.Elapsed = time.Since(c.Begun)
	}
	if c.Held && !c.Done {
		p.RemainingBytes = c.RoundBytes // about what has changed during the last round
	}
	if s := p.Elapsed.Seconds(); s > 0 {
		p.BytesPerSecond = float64(p.SentBytes) / s
	}
	return p
}

// Switch suspends a copied guest, sends the rest, and returns when the target has all of
// it. A repeated call gives the same answer. After an error that wraps fleet.ErrUnsure the target may have it; after any other it
// certainly does not, and Resume resumes it here.
func (d *Driver) Switch(ctx context.Context, t fleet.Task, lead func(away bool)) (fleet.Progress, error) {
	lead(true)
	p, err := d.switchOver(ctx, t)
	if err != nil {
		return fleet.Progress{}, fmt.Errorf("switch guest %s: %w", t.Guest.ID, err)
	}
	return p, nil
}

func (d *Driver) switchOver(ctx context.Context, t fleet.Task) (p fleet.Progress, err error) {
	g, err := d.here(t.Guest.ID)
	if err != nil {
		return p, err // its domain is destroyed with its warden; a target that has it says so itself
	}
	g.moving.Lock()
	defer g.moving.Unlock()
	c := g.Remembered().Copy
	if c == nil || c.Past || c.Migration != t.Order.Migration {
		return p, fmt.Errorf("there is no copy of migration %q under way", t.Order.Migration)
	}
	s, err := g.ask(ctx, question{Ask: askSwitch, Copy: &copyOrder{Migration: t.Order.Migration}})
	if err != nil {
		return p, err
	}
	for {
		switch c := s.Copy; {
		case c.Done:
			return g.progressOf(*c), nil
		case c.Failure != "" && c.Given:
			return p, fmt.Errorf("%s: %w", c.Failure, fleet.ErrUnsure)
		case c.Failure != "":
			return p, errors.New(c.Failure)
		}
		select {
		case <-g.life.Done():
			return p, fmt.Errorf("%w; %w", host.ErrClosed, fleet.ErrUnsure)
		case <-ctx.Done():
			return p, fmt.Errorf("%w; %w", ctx.Err(), fleet.ErrUnsure)
		case <-time.After(stageEvery):
		}
		if s, err = g.status(ctx); err != nil {
			return p, fmt.Errorf("%w; %w", err, fleet.ErrUnsure)
		}
	}
}

// Resume resumes a suspended guest: at a target that has all of it, or at a source whose
// switch certainly failed. It cancels a copy. It is not an error if the guest runs
// already. Resume is refused at a source that has given the guest away.
func (d *Driver) Resume(ctx context.Context, id fleet.GuestID) error {
	g, err := d.here(id)
	if err == nil {
		err = fault.Point("xen.resume.before")
	}
	if err == nil {
		_, err = g.ask(context.WithoutCancel(ctx), question{Ask: askRun}) // xl would go on behind the caller's back
		if err != nil && strings.HasPrefix(err.Error(), notWhole) {
			err = fmt.Errorf("%w: %w", fleet.ErrNotWhole, err)
		}
	}
	if err == nil {
		err = g.Remember(func(r *record) {
			r.Target = false
			if r.Copy != nil {
				r.Copy.Past = true
			}
		})
	}
	if err != nil {
		return fmt.Errorf("resume guest %s: %w", id, err)
	}
	d.shares.mu.Lock()
	defer d.shares.mu.Unlock()
	if err := d.give(g); err != nil { // what changed while it came
		d.config.Log.Warn("a guest has not its share", "guest", id, "cause", err)
	}
	return nil
}
