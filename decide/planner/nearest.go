// This file refuses jobs that would not fit even if all hosts were free, and names the nearest
// shape that would.
//
// It must not know what runs. Its tests are tables of small clusters.

package planner

import (
	"fmt"
	"slices"

	"pagurus/decide/lifecycle"
	"pagurus/decide/placement"
	"pagurus/fleet"
)

// neverFits says that the cluster's hosts could not hold a job even if they were free, and what
// they could hold; empty: they could. Hosts that drain, are silent or have their owners there count.
func (d *draft) neverFits(s fleet.JobSpec) (string, []placement.Why) {
	a := placement.Ask{Need: s.Need, Kind: s.Kind, Site: d.siteOf(s), Only: s.On, Files: s.Machine, Directories: s.Directories()}.IfFree()
	var able []int64
	var whys []placement.Why
	room, unseen := 0, false
	for _, id := range d.l.AllHosts() {
		h := d.Hosts.At(id)
		if h.Facts.SeenAt.IsZero() { // nobody knows yet what it has
			if len(s.On) == 0 || slices.Contains(s.On, id) {
				unseen = true
			}
			continue
		}
		h = lifecycle.Available(h)
		h.Facts.SeenAt, h.Facts.Connected = d.base.At, true
		if why := placement.Unfit(d.room(), &h, a); why != "" {
			whys = append(whys, placement.Why{Host: id, Reason: why})
		} else {
			able = append(able, h.Facts.Capacity.MemoryBytes)
			room += mostOn(h, s.Need)
		}
	}
	if room >= s.Guests || unseen {
		return "", nil
	}
	what := fmt.Sprintf("%s on %s of %d MiB never fit", counted(s.Ranks, "rank"), counted(s.Guests, "guest"), s.Need.MemoryBytes>>20)
	if len(able) == 0 {
		return what + ", because no host can run them; change what keeps the hosts from it", whys
	}
	var shapes []string
	if room > 0 {
		shapes = append(shapes, fmt.Sprintf("%s of %d MiB", counted(room, "guest"), s.Need.MemoryBytes>>20))
	}
	if least := mostEach(able, s.Guests) >> 20; least >= s.Kind.Traits().LeastMemoryBytes>>20 {
		shapes = append(shapes, fmt.Sprintf("%s of %d MiB", counted(s.Guests, "guest"), least))
	}
	if len(shapes) == 0 {
		return what + "; the hosts are too small for any guest", nil
	}
	return what + "; the largest that would is " + fleet.Enumerate(shapes, "or") + ": ask for it with --" + fleet.GuestsFlag + " and --" + fleet.MemFlag, nil
}

// mostEach is the largest memory of each of some guests for which hosts have room.
func mostEach(hosts []int64, guests int) int64 {
	fits := func(mib int64) bool {
		n := 0
		for _, bytes := range hosts {
			n += int(bytes / (mib << 20))
		}
		return n >= guests
	}
	low, high := int64(0), slices.Max(hosts)>>20+1 // fits, does not
	for high-low > 1 {
		if mid := (low + high) / 2; fits(mid) {
			low = mid
		} else {
			high = mid
		}
	}
	return low << 20
}
