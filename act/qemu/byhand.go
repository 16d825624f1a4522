// This file moves guests as somebody without Pagurus would: QEMU's settings are its own, the
// target runs the guest as soon as it has it, and nobody waits for anybody. Benchmarks compare
// Pagurus's moves with that.

package qemu

import (
	"context"
	"fmt"
	"time"

	"pagurus/fleet"
	"pagurus/internal/pause"
)

// HandMove is what QEMU says of a move by hand that has completed.
type HandMove struct {
	Total    time.Duration // since the command
	Downtime time.Duration
	Sent     int64 // bytes of memory
}

// handPoll is between two questions whether a move has completed.
const handPoll = 10 * time.Millisecond

// ReceiveByHand makes an empty guest that runs when its state has arrived, and returns the
// address where it waits for that; a repeated call returns the same address. After an error nothing of the guest is left, unless it was here
// already: then it is not touched.
func (d *Driver) ReceiveByHand(ctx context.Context, t fleet.Task) (listen string, err error) {
	d.making.RLock()
	defer d.making.RUnlock()
	return d.guests.Receive(ctx, t, func() (listen string, err error) {
		var g *guest
		m, _, err := d.machine(ctx, t)
		m.incoming = true
		if err == nil {
			g, err = d.boot(ctx, t, m)
		}
		if err == nil {
			listen, err = d.awaitIn(ctx, g)
		}
		if err == nil {
			err = g.Remember(func(r *record) { r.Complete, r.Listen = true, listen })
		}
		return listen, err
	})
}

func (d *Driver) awaitIn(ctx context.Context, g *guest) (string, error) {
	q, err := g.monitor(ctx)
	if err != nil {
		return "", err
	}
	return d.await(ctx, q)
}

// SendByHand sends a guest to where ReceiveByHand waits, and returns when QEMU says that it
// has completed. The guest's remains here are the caller's to stop. After an error the guest
// may run here or there.
func (d *Driver) SendByHand(ctx context.Context, id fleet.GuestID, listen string) (HandMove, error) {
	to, err := d.streamAddress(listen)
	if err != nil {
		return HandMove{}, err
	}
	_, q, err := d.here(ctx, id)
	if err == nil {
		err = q.Do(ctx, "migrate", map[string]any{"uri": to}, nil)
	}
	for err == nil {
		var now migration
		if now, err = queryMigrate(ctx, q); err != nil {
			break
		}
		switch {
		case now.Status == stateCompleted:
			p := now.progress()
			return HandMove{Total: p.Elapsed, Downtime: p.Downtime, Sent: p.SentBytes}, nil
		case !now.underWay():
			err = now.cause()
		default:
			err = pause.For(ctx, handPoll)
		}
	}
	return HandMove{}, fmt.Errorf("send guest %s by hand: %w", id, err)
}
