// This file has what follows from guests having devices of their hosts for themselves. Package placement says
// which host has a device free.

package planner

import (
	"cmp"

	"pagurus/fleet"
)

// mostOn is how many guests could be on a host if it were free. A device is one guest's.
func mostOn(h fleet.Host, need fleet.Resources) int {
	most := int(h.Facts.Capacity.MemoryBytes / max(need.MemoryBytes, 1))
	if need.Device != "" {
		most = min(most, 1)
	}
	return most
}

// unsavable says why a guest cannot be written to a checkpoint where it is; empty: it can, or its host has not said yet.
func (d *draft) unsavable(g fleet.Guest) string {
	able := d.base.Hosts[g.Home].Facts.Abilities[g.Kind]
	switch {
	case g.Need.Device != "":
		return g.Need.Device.Holds()
	case able.Checkpoint || d.silentHome(g):
		return ""
	}
	return cmp.Or(able.NoCheckpoint, "its agent does not say that it can")
}

// noEasier reports whether a guest with one need finds no room where one with the other found none.
func noEasier(need, than fleet.Resources) bool {
	return than.MemoryBytes <= need.MemoryBytes && (than.Device == "" || than.Device == need.Device)
}
