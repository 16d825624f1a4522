package placement

import (
	"fmt"
	"math"
	"slices"

	"pagurus/fleet"
)

// IfFree is the question for a guest that could be on a host if no other guest were there.
func (a Ask) IfFree() Ask {
	a.Need.MemoryBytes, a.busyToo = math.MinInt64/4, true
	return a
}

// lacksDevice says why a guest cannot have the device that it needs of a host; empty: it can, or needs none.
func (v *Survey) lacksDevice(h *fleet.Host, a Ask) string {
	want := a.Need.Device
	if want == "" {
		return ""
	}
	found, has := h.Facts.FindDevice(want)
	switch {
	case !has:
		return "has no device " + want.Address()
	case found.Trouble != "":
		return fmt.Sprintf("cannot give its device %s to a guest: %s", want.Address(), found.Trouble)
	case !a.busyToo && slices.Contains(v.at(h.ID).held.devices, want):
		return fmt.Sprintf("has given its device %s to a guest", want.Address())
	}
	return ""
}

// FreeDevices are those of a host that it could give to a guest and that none has.
func (v *Survey) FreeDevices(h *fleet.Host) (out []fleet.Passthrough) {
	for _, d := range h.Facts.Devices {
		if d.Trouble == "" && !slices.Contains(v.at(h.ID).held.devices, d.Passthrough()) {
			out = append(out, d.Passthrough())
		}
	}
	return out
}

// passed are the devices that guests have, sorted, with one more, or by -1 with one less. The list that it gets stays as it is:
// surveys share it.
func passed(devices []fleet.Passthrough, one fleet.Passthrough, by int) []fleet.Passthrough {
	if one == "" {
		return devices
	}
	i, there := slices.BinarySearch(devices, one)
	switch {
	case by > 0:
		return slices.Insert(slices.Clone(devices), i, one)
	case !there:
		return devices
	case len(devices) == 1:
		return nil
	}
	return slices.Concat(devices[:i], devices[i+1:])
}
