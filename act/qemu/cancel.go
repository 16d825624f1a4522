package qemu

import (
	"cmp"
	"context"
	"errors"
	"time"

	"pagurus/act/qemu/qmp"
)

// cancelPatience is how long QEMU has to clear a copy away that it has cancelled.
// It never completes one then, but was seen to hang in that for ever, when memory
// went over more than one connection (see stream). A guest that runs on meanwhile is none
// the worse: only its next copy has to wait.
const cancelPatience = 10 * time.Second

// cancelCopy ends a copy under way and sees to it that the guest runs. After a
// copy that has been completed it does nothing but say so.
func (g *guest) cancelCopy(ctx context.Context, q *qmp.Client) error {
	if g.dead() {
		return nil
	}
	errGone := errors.New("the guest is with the target already")
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

// hasLeft reports whether the target has the guest, and whether the migration is
// one out of here: QEMU also calls completed what it once took in.
func (g *guest) hasLeft(info migration) bool {
	c := g.remembered().Copy
	return (info.Status == stateCompleted || info.parted()) && c != nil && c.Begun
}
