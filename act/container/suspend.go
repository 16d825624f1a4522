package container

import (
	"context"
	"errors"
	"fmt"

	"pagurus/fleet"
)

// ReclaimMemory does nothing and returns 0. The memory that a container does not use belongs
// to the host already.
func (*Driver) ReclaimMemory(context.Context, fleet.GuestID, int64) (int64, error) { return 0, nil }

// ReturnMemory does nothing, because ReclaimMemory does nothing.
func (*Driver) ReturnMemory(context.Context, fleet.GuestID) error { return nil }

// Suspend freezes a guest until Resume. When the host is short of memory, its kernel
// takes the guest's memory first. The guest's connections stay open, because the host's
// kernel keeps them. It is not an error if the guest is suspended already. A guest that
// is being moved is refused. After an error call Suspend again, or Resume.
func (d *Driver) Suspend(_ context.Context, id fleet.GuestID) error {
	g, err := d.here(id)
	if err == nil {
		err = d.suspend(g)
	}
	if err != nil {
		return fmt.Errorf("suspend guest %s: %w", id, err)
	}
	return nil
}

func (d *Driver) suspend(g *guest) error {
	if g.Remembered().Copy.saves() {
		return errors.New("a checkpoint of it is being made")
	}
	if r := g.Remembered(); r.Target || r.Copy != nil && (r.Copy.Asked || r.Copy.Suspended || r.Copy.Left) {
		return errors.New("it is being moved")
	}
	if err := g.Remember(func(r *record) { r.Suspended = true }); err != nil { // recorded first: without a record the guest would stay frozen
		return err
	}
	return errors.Join(d.config.Cgroups.Freeze(g.ID), d.swap(g.ID, true))
}

// swap lets a guest's memory be swapped out, as suits a suspended one, or ends that.
func (d *Driver) swap(id fleet.GuestID, on bool) error {
	if d.config.Swap == nil {
		return nil
	}
	return d.config.Swap(id, on)
}

// rouse ends the effect of Suspend, if the guest is suspended.
func (d *Driver) rouse(g *guest) error {
	if !g.Remembered().Suspended {
		return nil
	}
	if err := errors.Join(d.swap(g.ID, false), d.goOn(g)); err != nil {
		return err
	}
	return g.Remember(func(r *record) { r.Suspended = false })
}
