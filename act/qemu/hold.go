package qemu

import (
	"context"
	"time"

	"pagurus/act/qemu/qmp"
	"pagurus/fleet"
)

// holdLimit only ends what nobody ended: who waits has a limit of his own. gateLimit
// is how long a guest may be suspended before its turn has come.
const (
	holdLimit = time.Hour
	gateLimit = 5 * time.Second
)

// setPace tells QEMU how fast a copy is to be sent now.
func setPace(ctx context.Context, q *qmp.Client, p *pacer, now fleet.Progress, held bool) error {
	if want, news := p.Next(now, time.Now(), held); news {
		return boundBandwidth(ctx, q.Do, want) // after an error nobody asks this pace again
	}
	return nil
}

// heldCopy is a guest's copy being held.
type heldCopy struct {
	stop context.CancelFunc
	done chan struct{}
}

// heldCopy keeps the copy of a guest going, until letGo or until it ends otherwise.
func (d *Driver) holdCopy(g *guest, q *qmp.Client, p *pacer, m fleet.MigrationID) {
	ctx, stop := context.WithTimeout(context.Background(), holdLimit)
	h := &heldCopy{stop: stop, done: make(chan struct{})}
	var before *heldCopy
	swap := func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		before, g.held = g.held, h
	}
	err := d.guests.Go(swap, func() {
		defer close(h.done)
		defer stop()
		if before != nil { // of an earlier copy, or of this one, that was watched on
			before.stop()
			<-before.done
		}
		events, end := q.Subscribe() // QEMU says when a pass begins
		defer end()
		var gate time.Time // since when it stands there: it came there while nobody held it
		for {
			info, err := queryMigrate(ctx, q)
			if err != nil || g.remembered().Copy.Migration != m || info.Status != stateActive && info.Status != stateGate {
				return // whoever switches, or calls it off, sees what became of it
			}
			switch {
			case info.Status == stateActive:
				err = setPace(ctx, q, p, info.progress(), true)
			case gate.IsZero():
				gate = time.Now()
			case time.Since(gate) > gateLimit:
				err = g.cancelCopy(ctx, q)
				d.config.Log.Warn("no switch order after copy, guest resumed", "guest", g.id, "error", err)
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

// holdOn goes on with a copy that an earlier agent held: nobody asks for it again
// before the others are ready.
func (d *Driver) holdOn(ctx context.Context, g *guest) {
	c := g.remembered().Copy
	if c == nil || !c.Good {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, inspectLimit)
	defer cancel()
	if q, err := g.monitor(ctx); err == nil {
		d.holdCopy(g, q, newPace(d.bandwidth(c.Limits)), c.Migration)
	}
}

// letGo ends the holding of a guest that is about to be stopped: the rest goes
// at full speed. A copy that an earlier agent held is let go too.
func (d *Driver) letGo(ctx context.Context, g *guest, q *qmp.Client, l fleet.Limits) error {
	g.mu.Lock()
	h := g.held
	g.held = nil
	g.mu.Unlock()
	if h != nil {
		h.stop()
		<-h.done
	}
	info, err := queryMigrate(ctx, q)
	if err != nil || info.Status != stateActive {
		return err // complete sees what it is
	}
	return boundBandwidth(ctx, q.Do, d.bandwidth(l))
}
