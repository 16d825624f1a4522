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
	if want == fleet.NetFunction {
		return v.lacksFunction(h, a)
	}
	found, has := h.Facts.FindDevice(want)
	switch {
	case !has:
		return "has no device " + want.Address()
	case found.ForNet:
		return fmt.Sprintf("keeps its device %s for guests with --%s %s", want.Address(), fleet.DeviceFlag, fleet.NetFunction)
	case found.Trouble != "":
		return fmt.Sprintf("cannot give its device %s to a guest: %s", want.Address(), found.Trouble)
	case !a.busyToo && slices.Contains(v.at(h.ID).held.devices, want):
		return fmt.Sprintf("has given its device %s to a guest", want.Address())
	}
	return ""
}

// FreeDevices are those of a host that it could give to a guest and that none has. NetFunction is there once for each.
func (v *Survey) FreeDevices(h *fleet.Host) (out []fleet.Passthrough) {
	for _, d := range h.Facts.Devices {
		if d.Trouble == "" && !d.ForNet && !slices.Contains(v.at(h.ID).held.devices, d.Passthrough()) {
			out = append(out, d.Passthrough())
		}
	}
	return append(out, slices.Repeat([]fleet.Passthrough{fleet.NetFunction}, max(v.functionsLeft(h), 0))...)
}

// lacksFunction says why a guest cannot have a virtual function of a host's card; empty: it can. One that runs and moves there needs
// the card alone, whose VLAN is its network.
func (v *Survey) lacksFunction(h *fleet.Host, a Ask) string {
	card, functions := h.Facts.NetFunctions()
	switch {
	case !card:
		return fmt.Sprintf("has no card for guests: its agent has no --%s", fleet.DeviceNetFlag)
	case a.Site != nil && h.Facts.Site != *a.Site:
		return fmt.Sprintf("is not in site %q, where the job's network is", *a.Site)
	case a.Alive != nil && !a.function:
		return ""
	case functions == 0:
		return "has a card for guests, and no virtual function of it that a guest could have"
	case !a.busyToo && v.functionsLeft(h) <= 0:
		return fmt.Sprintf("has given all %d virtual functions of its card to guests", functions)
	}
	return ""
}

// functionsLeft is how many virtual functions of its card a host has for more guests. One that came when there was none is counted,
// and has none.
func (v *Survey) functionsLeft(h *fleet.Host) int {
	_, left := h.Facts.NetFunctions()
	for _, d := range v.at(h.ID).held.devices {
		if d == fleet.NetFunction {
			left--
		}
	}
	for id := range h.Facts.Guests {
		if h.Facts.OnVirtio(id) {
			left++
		}
	}
	return left
}

// functions are the ways to place a guest that moves and can have a virtual function: where one is free, or else on virtio.
func (a Ask) functions() []suit {
	if a.Alive == nil || a.Need.Device != fleet.NetFunction {
		return []suit{{ask: a}}
	}
	with := a
	with.function = true
	return []suit{
		{ask: with, why: "with a virtual function, which is free there; "},
		{ask: a, why: "by virtio, since no host that could take it has a virtual function free; "},
	}
}

// SiteOf is where a guest has to be whose network is a VLAN and that shares it with this host; nil: anywhere.
func SiteOf(need fleet.Resources, host fleet.Facts) *string {
	if need.Device != fleet.NetFunction {
		return nil
	}
	return &host.Site
}

// OnVirtio says, for people, that a guest which moves to a host gets no virtual function there; empty: it gets one, or wants none. It is asked
// before the guest is counted there.
func (v *Survey) OnVirtio(id fleet.HostID, need fleet.Resources) string {
	if need.Device != fleet.NetFunction || v.functionsLeft(v.at(id).host) > 0 {
		return ""
	}
	return fmt.Sprintf("%s has no virtual function free: it goes on there by virtio, over the same network", id)
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
