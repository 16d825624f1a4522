package placement

import (
	"slices"

	"pagurus/fleet"
)

// spare is the number of a host's CPUs that are neither promised to guests nor used by
// others; negative if some are missing.
func (e *entry) spare() float64 {
	free := float64(e.host.Facts.Capacity.CPUs - e.held.cpus)
	if o := e.host.Facts.Owner; o != nil && e.held.cpus > 0 {
		free -= o.LoadCPUs
	}
	return free
}

// squeeze records whether a host is tight.
func (x *Index) squeeze(e *entry, tight bool) {
	if e.tight == tight {
		return
	}
	e.tight = tight
	i, _ := slices.BinarySearch(x.tight, e.host.ID)
	if tight {
		x.tight = slices.Insert(x.tight, i, e.host.ID)
	} else {
		x.tight = slices.Delete(x.tight, i, i+1)
	}
}

// Tight returns the hosts that have promised guests more CPUs than others leave, sorted
// by ID, valid until the index changes.
func (x *Index) Tight() []fleet.HostID { return x.tight }

// Relievable reports whether there are tight hosts while another has spare CPUs, judged
// by the best host of each class.
func (x *Index) Relievable() bool {
	if len(x.tight) == 0 {
		return false
	}
	for _, q := range x.classes {
		if len(q.positions) > 0 && x.entries[q.positions[0].slot].spare() >= 1 {
			return true
		}
	}
	return false
}
