package steering

import (
	"fmt"
	"time"

	"pagurus/decide/desired"
	"pagurus/fleet"
)

// The places of a neighbour, as pagurus.h has them.
const (
	sameHost  = 0
	sameSite  = 1
	elsewhere = 2
)

// Distances is what a program is told of how far the job's other guests are from its own: "far GUEST PLACE SECONDS BYTES HOST", with the seconds of
// a round trip and the bytes a second between the hosts; 0: not known.
func Distances(s fleet.Snapshot, g fleet.Guest) (rows []string) {
	for _, id := range desired.GuestIDs(s.Jobs[g.Job]) {
		other, known := s.Guests[id]
		if !known || id == g.ID {
			continue
		}
		place, latency, speed := distance(s.Hosts[g.Home], s.Hosts[other.Home])
		rows = append(rows, fmt.Sprintf("far %s %d %.6f %.0f %s", id, place, latency.Seconds(), speed, other.Home))
	}
	return rows
}

// distance is between two hosts: what they measured between each other, and else what their slower interface says.
func distance(a, b fleet.Host) (place int, latency time.Duration, speed float64) {
	if a.ID == b.ID {
		return sameHost, 0, 0
	}
	if place = elsewhere; a.Facts.Site == b.Facts.Site {
		place = sameSite
	}
	for _, way := range [][2]fleet.Host{{a, b}, {b, a}} {
		if way[0].Facts.WireGuard == nil {
			continue
		}
		path := way[0].Facts.WireGuard.Paths[way[1].ID]
		if path.Latency > 0 && (latency == 0 || path.Latency < latency) {
			latency = path.Latency
		}
		speed = max(speed, path.BytesPerSecond)
	}
	if speed == 0 {
		speed = min(link(a), link(b))
	}
	return place, latency, speed
}

// link is what a host's interface can carry; 0: not known.
func link(h fleet.Host) float64 {
	if h.Facts.Speed == nil {
		return 0
	}
	return h.Facts.Speed.LinkBytesPerSecond
}
