package container

import (
	"fmt"
	"path/filepath"

	"pagurus/act/container/sandbox"
	"pagurus/fleet"
)

// Scratch is what the own files of guests that run here take of this host, and may. Guests that come, leave or are suspended are left out: nothing
// of them may change.
func (d *Driver) Scratch() ([]fleet.Scratch, error) {
	all, err := d.guests.All()
	if err != nil {
		return nil, err
	}
	var out []fleet.Scratch
	for id, g := range all {
		r := g.Remembered()
		store := filepath.Join(g.Dir, storeDir)
		bound := sandbox.StoreBound(store)
		if g.Dead() || !r.Complete || r.runs() != fleet.Running || bound == 0 {
			continue
		}
		out = append(out, fleet.Scratch{Guest: id, UID: r.UID, Used: sandbox.UsedBytes(store), Bound: bound, Most: r.Need.MemoryBytes})
	}
	return out, nil
}

// BoundScratch bounds a guest's own files, which may have as much by now. After an error the bound is as it was: they have more already.
func (d *Driver) BoundScratch(id fleet.GuestID, bytes int64) error {
	g, err := d.here(id)
	if err != nil {
		return fmt.Errorf("find guest %s: %w", id, err)
	}
	return sandbox.BoundStore(filepath.Join(g.Dir, storeDir), bytes)
}
