package qemu

import (
	"context"
	"errors"
	"fmt"

	"pagurus/act/qemu/qmp"
	"pagurus/act/qemu/ram"
	"pagurus/fleet"
)

// reserve is what a guest keeps of its free memory when it gives memory back:
// an eighth of all it has, so that its programs can go on as they are. What
// they need beyond that the guest takes again by itself (deflate-on-oom).
const reserve = 8

// Lend has a guest in which so many bytes hold nothing give them back to the
// host, but for a reserve, and says how many bytes of its memory the host has
// then; the guest follows as it can. Given to the host is given until Reclaim,
// also after a move. After an error it has what it had.
func (d *Driver) Lend(ctx context.Context, id fleet.GuestID, free int64) (int64, error) {
	lent, err := d.lend(ctx, id, func(all, has int64) int64 { return min(all, max(has-free+all/reserve, all/reserve)) })
	if err != nil {
		return 0, fmt.Errorf("have guest %s give memory back: %w", id, err)
	}
	return lent, nil
}

// Reclaim gives a guest all of its memory again. One that gave none is no error.
// After an error call again.
func (d *Driver) Reclaim(ctx context.Context, id fleet.GuestID) error {
	_, err := d.lend(ctx, id, func(all, _ int64) int64 { return all })
	if err != nil {
		return fmt.Errorf("give guest %s its memory again: %w", id, err)
	}
	return nil
}

// lend asks the guest's kernel, through its balloon, to do with what want says,
// of all it could have and what it has.
func (d *Driver) lend(ctx context.Context, id fleet.GuestID, want func(all, has int64) int64) (int64, error) {
	_, q, err := d.here(ctx, id)
	if err != nil {
		return 0, err
	}
	var size struct {
		Base int64 `json:"base-memory"`
	}
	if err := q.Do(ctx, "query-memory-size-summary", nil, &size); err != nil {
		return 0, err
	}
	var balloon struct {
		Actual int64 `json:"actual"`
	}
	if err := q.Do(ctx, "query-balloon", nil, &balloon); err != nil {
		return 0, err
	}
	keep := want(size.Base, balloon.Actual)
	if keep == balloon.Actual {
		return size.Base - keep, nil
	}
	return size.Base - keep, q.Do(ctx, "balloon", map[string]any{"value": keep}, nil)
}

// Pause has a guest stand still until Resume, and lets the host have its memory
// if it is short of it and has anywhere to put it. One that stands still is no
// error; one that is being moved is refused. After an error call again, or
// Resume.
func (d *Driver) Pause(ctx context.Context, id fleet.GuestID) error {
	g, q, err := d.here(ctx, id)
	if err == nil {
		err = g.pause(ctx, q)
	}
	if err != nil {
		return fmt.Errorf("have guest %s stand still: %w", id, err)
	}
	if area, err := g.area(ctx, q); err == nil {
		err = area.PageOut()
		if err != nil {
			d.config.Log.Warn("what a guest that stands still has in memory stays there until the host is short of it", "guest", id, "cause", err)
		}
	}
	return nil
}

func (g *guest) pause(ctx context.Context, q *qmp.Client) error {
	if info, err := queryMigrate(ctx, q); err != nil || info.underWay() || g.remembered().Target {
		return errors.Join(err, errors.New("it is being moved"))
	}
	switch status, err := vmStatus(ctx, q); {
	case err != nil || status == vmPaused:
		return err
	case status != vmRunning:
		return fmt.Errorf("it does not run here: it is %s", status)
	}
	return q.Do(ctx, "stop", nil, nil)
}

// area finds out where the guest's memory is.
func (g *guest) area(ctx context.Context, q *qmp.Client) (ram.Area, error) {
	g.mu.Lock()
	area := g.memory
	g.mu.Unlock()
	if area.Bytes > 0 {
		return area, nil
	}
	area, err := ram.Find(ctx, g.remembered().Process.PID, q.Do)
	if err == nil {
		g.mu.Lock()
		g.memory = area
		g.mu.Unlock()
	}
	return area, err
}
