package placement

import (
	"slices"

	"pagurus/fleet"
)

// spare is how many CPUs of a host are neither promised to guests nor in use by
// others; less than nothing: so many are missing.
func (e *entry) spare() float64 {
	free := float64(e.host.Facts.Capacity.CPUs - e.held.cpus)
	if o := e.host.Facts.Owner; o != nil && e.held.cpus > 0 {
		free -= o.LoadCPUs
	}
	return free
}

// squeeze notes whether a host is tight.
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

// Tight gives the hosts that have promised guests more CPUs than others leave,
// in order of ID, for reading until the index changes.
func (x *Index) Tight() []fleet.HostID { return x.tight }

// Relievable reports whether there are such hosts while another has CPUs to
// spare, as far as the best ones of each class show.
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
