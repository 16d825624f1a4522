package controller

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"pagurus/fleet"
)

// Each time that a host has another WireGuard key or port, all hosts that have a job with it change their devices. A working
// one changes its key once in a month, and when somebody starts its agent with another port.
const (
	mostRekeyings = 24
	rekeyingSpan  = 24 * time.Hour
)

// rekeyed is when each host has changed its key or port, the latest last.
type rekeyed map[fleet.HostID][]time.Time

// admitKey returns a host's facts with the WireGuard key and port that others are told: those that it reports, or, if it has
// changed them too often, those before. h is the host until now.
func (r rekeyed) admitKey(h fleet.Host, f fleet.Facts, at time.Time) fleet.Facts {
	now, before := wireGuardEnd(f), cmp.Or(wireGuardEnd(h.Facts), h.WireGuard)
	if now == before || now.Key == "" || before.Key == "" {
		return f
	}
	times := slices.DeleteFunc(r[h.ID], func(t time.Time) bool { return at.Sub(t) > rekeyingSpan })
	if len(times) < mostRekeyings {
		r[h.ID] = append(times, at)
		return f
	}
	r[h.ID] = times
	w := *f.WireGuard
	w.WireGuardEnd, f.WireGuard = before, &w
	f.Troubles = append(slices.Clone(f.Troubles), fmt.Sprintf("its WireGuard key or port has changed %d times within a day, and other hosts are told no other until %s: find out what starts its agent with a new state folder or port (--%s)",
		mostRekeyings, times[0].Add(rekeyingSpan).UTC().Format("15:04 UTC"), fleet.WireGuardPortFlag))
	return f
}
