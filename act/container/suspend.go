package container

import (
	"context"
	"errors"
	"fmt"

	"pagurus/fleet"
)

// ReclaimMemory is nothing that a container need be asked for: memory that it does not
// fill is the host's already.
func (*Driver) ReclaimMemory(context.Context, fleet.GuestID, int64) (int64, error) { return 0, nil }

// ReturnMemory ends Lend, which is nothing.
func (*Driver) ReturnMemory(context.Context, fleet.GuestID) error { return nil }

// Suspend has a guest stand still until Resume; what it has in memory is what the
// host's kernel takes first when it is short of it. Its connections live: they
// are the host's kernel's. One that stands still is no error, one that is being
// moved is refused. After an error call again, or Resume.
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
	if r := g.remembered(); r.Target || r.Copy != nil && (r.Copy.Asked || r.Copy.Suspended || r.Copy.Left) {
		return errors.New("it is being moved")
	}
	if err := g.remember(func(r *record) { r.Suspended = true }); err != nil { // first: what nobody knows of would stay frozen
		return err
	}
	return d.config.Cgroups.Freeze(g.id)
}

// rouse ends Pause, if there was one.
func (d *Driver) rouse(g *guest) error {
	if !g.remembered().Suspended {
		return nil
	}
	if err := d.goOn(g); err != nil {
		return err
	}
	return g.remember(func(r *record) { r.Suspended = false })
}
