package container

import (
	"context"
	"errors"
	"fmt"

	"pagurus/fleet"
)

// Lend is nothing that a container need be asked for: memory that it does not
// fill is the host's already.
func (*Driver) Lend(context.Context, fleet.GuestID, int64) (int64, error) { return 0, nil }

// Reclaim ends Lend, which is nothing.
func (*Driver) Reclaim(context.Context, fleet.GuestID) error { return nil }

// Pause has a guest stand still until Resume; what it has in memory is what the
// host's kernel takes first when it is short of it. Its connections live: they
// are the host's kernel's. One that stands still is no error, one that is being
// moved is refused. After an error call again, or Resume.
func (d *Driver) Pause(_ context.Context, id fleet.GuestID) error {
	g, err := d.here(id)
	if err == nil {
		err = d.pause(g)
	}
	if err != nil {
		return fmt.Errorf("have guest %s stand still: %w", id, err)
	}
	return nil
}

func (d *Driver) pause(g *guest) error {
	if r := g.remembered(); r.Target || r.Copy != nil && (r.Copy.Asked || r.Copy.Frozen || r.Copy.Left) {
		return errors.New("it is being moved")
	}
	if err := g.remember(func(r *record) { r.Still = true }); err != nil { // first: what nobody knows of would stay frozen
		return err
	}
	return d.config.Cgroups.Freeze(g.id)
}

// rouse ends Pause, if there was one.
func (d *Driver) rouse(g *guest) error {
	if !g.remembered().Still {
		return nil
	}
	if err := d.goOn(g); err != nil {
		return err
	}
	return g.remember(func(r *record) { r.Still = false })
}
