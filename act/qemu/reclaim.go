package qemu

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"pagurus/act/qemu/qmp"
	"pagurus/fleet"
)

// ReclaimMemory makes a guest give its free memory to the host; free is how much that is, in
// bytes. It returns how many bytes of the guest's memory the host then has. The host keeps
// them until ReturnMemory, also after a move. Huge pages are not given: they would go back to
// the reserved ones, not to the owner, and might be gone when the guest needs them. A guest that has a device
// keeps all: QEMU could not give back what the guest no longer uses.
func (d *Driver) ReclaimMemory(ctx context.Context, id fleet.GuestID, free int64) (reclaimed int64, err error) {
	g, q, err := d.here(ctx, id)
	if err == nil && !g.fixed() {
		reclaimed, err = inflate(ctx, q.Do, free)
	}
	if err != nil {
		return 0, fmt.Errorf("reclaim memory of guest %s: %w", id, err)
	}
	return reclaimed, nil
}

// ReturnMemory returns all memory to a guest.
func (d *Driver) ReturnMemory(ctx context.Context, id fleet.GuestID) error {
	_, q, err := d.here(ctx, id)
	if err == nil {
		err = deflate(ctx, q.Do)
	}
	if err != nil {
		return fmt.Errorf("return memory to guest %s: %w", id, err)
	}
	return nil
}

// Suspend suspends a guest until Resume. If the host is short of memory and has swap, its
// kernel may page the guest's memory out. It is not an error if the guest is suspended
// already. A guest that is being moved is refused. After an error call Suspend again, or
// Resume.
func (d *Driver) Suspend(ctx context.Context, id fleet.GuestID) error {
	g, q, err := d.here(ctx, id)
	if err == nil {
		err = g.suspend(ctx, q)
	}
	if err != nil {
		return fmt.Errorf("suspend guest %s: %w", id, err)
	}
	if area, err := g.area(ctx, q); err == nil && !g.fixed() {
		if err = d.swap(id, true); err == nil {
			err = area.PageOut()
		}
		if err != nil {
			d.config.Log.Warn("the memory of a suspended guest stays there until the host is short of it", "guest", id, "cause", err)
		}
	}
	return nil
}

// swap lets a guest's memory be swapped out, or ends that.
func (d *Driver) swap(id fleet.GuestID, on bool) error {
	if d.config.Cgroups == nil {
		return nil
	}
	return d.config.Cgroups.Swap(id, on)
}

func (g *guest) suspend(ctx context.Context, q *qmp.Client) error {
	if info, err := queryMigrate(ctx, q); err != nil || info.underWay() || g.Remembered().Target {
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

// fixed reports whether the guest's memory stays where it is: some of it is in reserved huge pages, or the kernel has pinned it for a
// device.
func (g *guest) fixed() bool {
	r := g.Remembered()
	l := r.Layout
	return r.Device != "" || l != nil && slices.ContainsFunc(l.Nodes, func(n fleet.LayoutNode) bool { return n.PageBytes > 0 })
}

// area finds the guest's memory.
func (g *guest) area(ctx context.Context, q *qmp.Client) (ramArea, error) {
	g.Mu.Lock()
	area := g.memory
	g.Mu.Unlock()
	if area.Bytes > 0 {
		return area, nil
	}
	area, err := findRAM(ctx, g.Remembered().Process.PID, q.Do)
	if err == nil {
		g.Mu.Lock()
		g.memory = area
		g.Mu.Unlock()
	}
	return area, err
}
