package qemu

import (
	"context"
	"time"

	"pagurus/act/qemu/pace"
	"pagurus/act/qemu/qmp"
	"pagurus/fleet"
)

// holdLimit only ends what nobody ended: who waits has a limit of his own.
const holdLimit = time.Hour

// keep tells QEMU how fast a copy is to be sent now.
func keep(ctx context.Context, q *qmp.Client, p *pace.Pace, now fleet.Progress, held bool) error {
	if want, news := p.Next(now, held); news {
		return setBandwidth(ctx, q, want) // after an error nobody asks this pace again
	}
	return nil
}

func setBandwidth(ctx context.Context, q *qmp.Client, bytesPerSecond int64) error {
	return q.Do(ctx, "migrate-set-parameters", map[string]any{"max-bandwidth": bytesPerSecond}, nil)
}

// hold is a guest's copy being held.
type hold struct {
	stop context.CancelFunc
	done chan struct{}
	pace *pace.Pace // not to be touched before done
}

// hold keeps the copy of a guest going, until letGo or until it ends otherwise.
func (d *Driver) hold(g *guest, q *qmp.Client, p *pace.Pace, m fleet.MigrationID) {
	ctx, stop := context.WithTimeout(context.Background(), holdLimit)
	h := &hold{stop: stop, done: make(chan struct{}), pace: p}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		stop()
		return
	}
	g.held = h
	d.watches.Go(func() {
		defer close(h.done)
		defer stop()
		events, end := q.Subscribe() // QEMU says when a pass begins
		defer end()
		for {
			info, err := queryMigrate(ctx, q)
			if err != nil || info.Status != stateActive || g.remembered().Copy.Migration != m {
				return // whoever switches, or calls it off, sees what became of it
			}
			if keep(ctx, q, p, info.progress(), true) != nil || g.wait(ctx, events, lookEvery) != nil {
				return
			}
		}
	})
}

// letGo ends the holding of a guest and gives the limits to switch it by. If
// what is left can be sent within them, it is to be stopped at once and not
// when QEMU, which has been sending slowly, comes to think so: the others of
// its move stop now as well. A copy that an earlier agent held is let go too.
func (d *Driver) letGo(ctx context.Context, g *guest, q *qmp.Client, l fleet.Limits) (fleet.Limits, error) {
	d.mu.Lock()
	h := g.held
	g.held = nil
	d.mu.Unlock()
	if h != nil {
		h.stop()
		<-h.done
	}
	info, err := queryMigrate(ctx, q)
	if err != nil || info.Status != stateActive {
		return l, err // complete sees what it is
	}
	if err := setBandwidth(ctx, q, d.bandwidth(l)); err != nil {
		return l, err
	}
	if h != nil && h.pace.Fits(info.RAM.Remaining, max(l.Downtime, leastDowntime)) {
		l.Downtime = mostDowntime
	}
	return l, nil
}
