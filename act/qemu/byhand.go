// This file moves guests as somebody without Pagurus would: QEMU's settings are its own, the
// target runs the guest as soon as it has it, and nobody waits for anybody. Benchmarks compare
// Pagurus's moves with that.

package qemu

import (
	"context"
	"errors"
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
// address where it waits for that. After an error nothing is left.
func (d *Driver) ReceiveByHand(ctx context.Context, t fleet.Task) (listen string, err error) {
	d.making.RLock()
	defer d.making.RUnlock()
	id := t.Guest.ID
	release, g, err := d.claim(ctx, id)
	if err != nil {
		return "", fmt.Errorf("receive guest %s by hand: %w", id, err)
	}
	defer release()
	if g != nil {
		return "", fmt.Errorf("receive guest %s by hand: it is here already", id)
	}
	m, _, err := d.machine(ctx, t)
	m.incoming = true
	if err == nil {
		g, err = d.boot(ctx, t, m)
	}
	if err == nil {
		listen, err = d.awaitIn(ctx, g)
	}
	if err == nil {
		err = g.remember(func(r *record) { r.Complete = true })
	}
	if err != nil {
		return "", fmt.Errorf("receive guest %s by hand: %w", id, errors.Join(err, d.destroy(id)))
	}
	return listen, nil
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
	to, err := streamAddress(listen)
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
