package lifecycle

import (
	"time"

	"pagurus/fleet"
)

// hostArrow is one line of a host's life: only people change it.
type hostArrow struct {
	from fleet.HostState
	on   fleet.RequestVerb
	to   fleet.HostState
}

var hostArrows = []hostArrow{
	{from: fleet.HostUp, on: fleet.Join, to: fleet.HostUp},
	{from: fleet.HostUp, on: fleet.Drain, to: fleet.HostDraining},
	{from: fleet.HostUp, on: fleet.Undrain, to: fleet.HostUp},
	{from: fleet.HostDraining, on: fleet.Join, to: fleet.HostDraining},
	{from: fleet.HostDraining, on: fleet.Drain, to: fleet.HostDraining},
	{from: fleet.HostDraining, on: fleet.Undrain, to: fleet.HostUp},
}

// Enlist gives a host whose agent called for the first time.
func Enlist(id fleet.HostID, at time.Time) fleet.Host {
	return fleet.Host{ID: id, State: fleet.HostUp, Since: at}
}

// Host moves a host by what a person asks. Whether it is heard from is a fact
// and no state, so silence changes nothing here. The second result is false
// when nothing changed.
func Host(h fleet.Host, on fleet.RequestVerb, at time.Time) (fleet.Host, bool) {
	for _, a := range hostArrows {
		if a.from == h.State && a.on == on && a.to != a.from {
			h.State, h.Since = a.to, at
			return h, true
		}
	}
	return h, false
}
