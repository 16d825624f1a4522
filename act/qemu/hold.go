package qemu

import (
	"context"
	"errors"
	"time"

	"pagurus/act/host"
	"pagurus/act/qemu/qmp"
	"pagurus/fleet"
	"pagurus/internal/pause"
)

// holdLimit only ends forgotten holds: callers have their own limits. gateLimit is how
// long a guest may be suspended before its turn.
const (
	holdLimit = time.Hour
	gateLimit = 5 * time.Second
)

// setPace sets a copy's present bandwidth.
func setPace(ctx context.Context, q *qmp.Client, p *pacer, now fleet.Progress, held bool) error {
	if want, news := p.Next(now, time.Now(), held); news {
		return boundBandwidth(ctx, q.Do, want) // after an error the same pace is not retried
	}
	return nil
}

// heldCopy is a guest's copy that is kept running.
type heldCopy struct {
	stop      context.CancelFunc
	done      chan struct{}
	pace      *pacer
	migration fleet.MigrationID
	gate      time.Time // when the guest reached the gate before its turn
}

// holdCopy keeps a guest's copy running until letGo or until the copy ends.
func (d *Driver) holdCopy(g *guest, p *pacer, m fleet.MigrationID) {
	ctx, stop := context.WithTimeout(d.life, holdLimit)
	h := &heldCopy{stop: stop, done: make(chan struct{}), pace: p, migration: m}
	var before *heldCopy
	swap := func() {
		g.Mu.Lock()
		defer g.Mu.Unlock()
		before, g.held = g.held, h
	}
	err := d.guests.Go(swap, func() {
		defer close(h.done)
		defer stop()
		if before != nil { // an earlier copy's hold, or this one's if it is watched again
			before.stop()
			<-before.done
		}
		for {
			q, err := g.reach(ctx)
			if err != nil || d.keepCopy(ctx, g, q, h) {
				return
			}
			// The connection ended, as when another command was not taken in time.
		}
	})
	if err != nil {
		stop()
	}
}

// keepCopy is what holdCopy does while a connection to QEMU lasts. It reports whether the hold is over.
func (d *Driver) keepCopy(ctx context.Context, g *guest, q *qmp.Client, h *heldCopy) (over bool) {
	events, end := q.Subscribe() // QEMU reports when a pass begins
	defer end()
	for {
		info, err := queryMigrate(ctx, q)
		if c := g.Remembered().Copy; c.Migration != h.migration || c.Past || err == nil && info.Status != stateActive && info.Status != stateGate {
			return true // the caller that switches or cancels handles it
		}
		switch {
		case err != nil:
		case info.Status == stateActive:
			err = setPace(ctx, q, h.pace, info.progress(), true)
		case h.gate.IsZero():
			h.gate = time.Now()
		case time.Since(h.gate) > gateLimit:
			err = d.cancelCopy(ctx, g, q)
			d.config.Log.Warn("no switch order after copy, guest resumed", "guest", g.ID, "cause", err)
			if err == nil {
				return true
			}
		}
		if err == nil {
			err = g.wait(ctx, events, copyPollEvery)
		}
		switch {
		case ctx.Err() != nil || g.Dead():
			return true
		case err != nil:
			return g.wait(ctx, nil, copyPollEvery) != nil
		}
	}
}

// reach connects to QEMU, however long it does not answer, as on a busy host.
func (g *guest) reach(ctx context.Context) (*qmp.Client, error) {
	for {
		q, err := g.monitor(ctx)
		if err == nil || ctx.Err() != nil || errors.Is(err, host.ErrClosed) {
			return q, err
		}
		if err := g.wait(ctx, nil, copyPollEvery); err != nil {
			return nil, err
		}
	}
}

// holdOn continues the hold of an earlier agent. The controller does not ask for it again
// before the gang is ready.
func (d *Driver) holdOn(g *guest) {
	if c := g.Remembered().Copy; c != nil && c.Good && !c.Past {
		d.holdCopy(g, newPace(d.bandwidth(c.Limits)), c.Migration)
	}
}

// letGo ends a hold before the guest is suspended: the rest is sent at full speed. It
// also ends the hold of an earlier agent.
func (d *Driver) letGo(ctx context.Context, g *guest, q *qmp.Client, l fleet.Limits) error {
	g.Mu.Lock()
	h := g.held
	g.held = nil
	g.Mu.Unlock()
	if h != nil {
		h.stop()
		<-h.done
	}
	info, err := queryMigrate(ctx, q)
	if err != nil || info.Status != stateActive {
		return err // complete handles it
	}
	if err := boundBandwidth(ctx, q.Do, d.bandwidth(l)); err != nil {
		return err
	}
	if c := g.Remembered().Copy; c == nil || !c.Waits {
		return nil
	}
	// QEMU sleeps out the interval in which it has sent its share; the guest runs meanwhile. All members of a gang wait as long.
	return pause.For(ctx, window)
}
