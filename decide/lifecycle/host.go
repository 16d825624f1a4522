package lifecycle

import (
	"time"

	"pagurus/fleet"
)

// hostArrow is one transition of a host; only requests cause them.
type hostArrow struct {
	from fleet.HostState
	on   fleet.RequestVerb
	to   fleet.HostState
}

var hostArrows = []hostArrow{
	{from: fleet.HostUp, on: fleet.Drain, to: fleet.HostDraining},
	{from: fleet.HostUp, on: fleet.Undrain, to: fleet.HostUp},
	{from: fleet.HostDraining, on: fleet.Drain, to: fleet.HostDraining},
	{from: fleet.HostDraining, on: fleet.Undrain, to: fleet.HostUp},
}

// Enlist returns a host whose agent connected for the first time.
func Enlist(id fleet.HostID, at time.Time) fleet.Host {
	return fleet.Host{ID: id, State: fleet.HostUp, Since: at}
}

// Host applies a request to a host. Connection is a fact, not a state, so silence changes
// nothing. The second result is false if nothing changed.
func Host(h fleet.Host, on fleet.RequestVerb, at time.Time) (fleet.Host, bool) {
	for _, a := range hostArrows {
		if a.from == h.State && a.on == on && a.to != a.from {
			h.State, h.Since = a.to, at
			return h, true
		}
	}
	return h, false
}

// Available is a host as it would be if it neither drained nor had its owner there.
func Available(h fleet.Host) fleet.Host {
	h.State, h.ForOwner, h.Facts.Owner = fleet.HostUp, false, nil
	return h
}
