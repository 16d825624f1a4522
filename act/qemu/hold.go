package qemu

import (
	"context"
	"time"

	"pagurus/act/qemu/qmp"
	"pagurus/fleet"
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
	stop context.CancelFunc
	done chan struct{}
}

// holdCopy keeps a guest's copy running until letGo or until the copy ends.
func (d *Driver) holdCopy(g *guest, q *qmp.Client, p *pacer, m fleet.MigrationID) {
	ctx, stop := context.WithTimeout(context.Background(), holdLimit)
	h := &heldCopy{stop: stop, done: make(chan struct{})}
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
		events, end := q.Subscribe() // QEMU reports when a pass begins
		defer end()
		var gate time.Time // when the guest reached the gate, before its turn
		for {
			info, err := queryMigrate(ctx, q)
			if c := g.Remembered().Copy; err != nil || c.Migration != m || c.Past || info.Status != stateActive && info.Status != stateGate {
				return // the caller that switches or cancels handles it
			}
			switch {
			case info.Status == stateActive:
				err = setPace(ctx, q, p, info.progress(), true)
			case gate.IsZero():
				gate = time.Now()
			case time.Since(gate) > gateLimit:
				err = d.cancelCopy(ctx, g, q)
				d.config.Log.Warn("no switch order after copy, guest resumed", "guest", g.ID, "cause", err)
				return
			}
			if err != nil || g.wait(ctx, events, copyPollEvery) != nil {
				return
			}
		}
	})
	if err != nil {
		stop()
	}
}

// holdOn continues the hold of an earlier agent. The controller does not ask for it again
// before the gang is ready.
func (d *Driver) holdOn(ctx context.Context, g *guest) {
	c := g.Remembered().Copy
	if c == nil || !c.Good || c.Past {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, inspectLimit)
	defer cancel()
	if q, err := g.monitor(ctx); err == nil {
		d.holdCopy(g, q, newPace(d.bandwidth(c.Limits)), c.Migration)
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
	return boundBandwidth(ctx, q.Do, d.bandwidth(l))
}
