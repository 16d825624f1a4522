package qemu

import (
	"cmp"
	"context"
	"errors"
	"time"

	"pagurus/act/qemu/qmp"
)

// cancelPatience is how long QEMU may take to clean up a cancelled copy. It was seen to
// hang there for ever when memory was sent over several connections (see stream), though
// it never completes the copy. The guest runs on unharmed; only its next copy must wait.
const cancelPatience = 10 * time.Second

// cancelCopy ends a running copy and makes sure that the guest runs. If the copy has
// completed, it only reports that.
func (d *Driver) cancelCopy(ctx context.Context, g *guest, q *qmp.Client) error {
	err := g.cancelCopy(ctx, q)
	if err == nil {
		d.pairOn(g)
	}
	return err
}

// errGone: a copy cannot be cancelled any more.
var errGone = errors.New("the guest is with the target already")

func (g *guest) cancelCopy(ctx context.Context, q *qmp.Client) error {
	if g.Dead() {
		return nil
	}
	if info, err := queryMigrate(ctx, q); err != nil || info.parted() && g.hasLeft(info) {
		return cmp.Or(err, errGone)
	}
	if err := q.Do(ctx, "migrate_cancel", nil, nil); err != nil {
		return err
	}
	events, stop := q.Subscribe()
	defer stop()
	for begun := time.Now(); ; {
		info, err := queryMigrate(ctx, q)
		if err != nil {
			return err
		}
		if g.hasLeft(info) {
			return errGone
		}
		if !info.underWay() {
			return g.run(ctx, q)
		}
		if info.Status == stateCancelling && time.Since(begun) > cancelPatience {
			if status, err := vmStatus(ctx, q); err != nil || status == vmRunning {
				return err
			}
		}
		if err := g.wait(ctx, events, copyPollEvery); err != nil {
			return err
		}
	}
}

// hasLeft reports whether the target has the guest, and the migration was an outgoing
// one: QEMU also reports its incoming migration as completed.
func (g *guest) hasLeft(info migration) bool {
	c := g.Remembered().Copy
	return (info.Status == stateCompleted || info.parted()) && c != nil && c.Begun && !c.Past
}
