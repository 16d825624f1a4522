package placement

import (
	"slices"
	"strings"
	"testing"

	"pagurus/fleet"
)

const aDevice fleet.Passthrough = "pci:0000:03:10.0"

// deviceHost is a host with a device.
func deviceHost(id fleet.HostID, d fleet.Device) fleet.Host {
	h := host(id, 4<<30)
	h.Facts.Devices = []fleet.Device{{Address: "0000:02:00.0"}, d}
	return h
}

// A guest gets a device where the host has it, can give it away, and no other guest has it. Who asks what could be if the
// host were free hears of the first two alone.
func TestDeviceIsOneGuests(t *testing.T) {
	good := fleet.Device{Address: aDevice.Address()}
	bad := fleet.Device{Address: aDevice.Address(), Trouble: "it shares IOMMU group 7 with 0000:03:10.1"}
	need := fleet.Resources{CPUs: 1, MemoryBytes: 1 << 30, Device: aDevice}
	ask := Ask{Need: need, Kind: fleet.VM}
	other := need
	other.Device = "pci:0000:02:00.0"
	for _, c := range []struct {
		host         fleet.Host
		has          []fleet.Resources
		want, ifFree string
	}{
		{deviceHost("host1", good), nil, "", ""},
		{deviceHost("host1", good), []fleet.Resources{other, {MemoryBytes: 1}}, "", ""},
		{deviceHost("host1", good), []fleet.Resources{other, need}, "has given its device 0000:03:10.0 to a guest", ""},
		{deviceHost("host1", bad), nil, "cannot give its device 0000:03:10.0 to a guest: " + bad.Trouble, "cannot give its device 0000:03:10.0 to a guest: " + bad.Trouble},
		{host("host1", 4<<30), nil, "has no device 0000:03:10.0", "has no device 0000:03:10.0"},
	} {
		s := snapshot(c.host)
		v := NewSurvey(s, nil)
		for _, n := range c.has {
			v.Reserve("host1", n)
		}
		if got, free := Unfit(v, &c.host, ask), Unfit(v, &c.host, ask.IfFree()); got != c.want || free != c.ifFree {
			t.Errorf("beside %v: got %q, and if free %q; want %q and %q", c.has, got, free, c.want, c.ifFree)
		}
	}
	s := snapshot(deviceHost("host1", good), deviceHost("host2", good))
	v := NewSurvey(s, nil)
	chosen, stuck := v.PlaceAll([]Ask{ask, ask, ask})
	if stuck != 2 || len(chosen) < 2 || chosen[0].Host == chosen[1].Host {
		t.Errorf("of three guests %d found none: %+v", stuck, chosen)
	}
}

// A device is free again when its guest has gone, and a survey does not change what another has.
func TestDevicesAreCounted(t *testing.T) {
	var h held
	one, two := fleet.Resources{Device: aDevice}, fleet.Resources{Device: "pci:0000:02:00.0"}
	h.count(one, 1)
	copied := h
	h.count(two, 1)
	copied.count(one, -1)
	copied.count(one, -1)
	h.count(fleet.Resources{}, 1)
	if want := []fleet.Passthrough{two.Device, one.Device}; !slices.Equal(h.devices, want) || copied.devices != nil {
		t.Errorf("one has %v, want %v; its copy has %v", h.devices, want, copied.devices)
	}
	if h.count(two, -1); !slices.Equal(h.devices, []fleet.Passthrough{aDevice}) {
		t.Errorf("after one has gone there are %v", h.devices)
	}
}

// A guest that has a device does not move, whatever its host says.
func TestDeviceHinders(t *testing.T) {
	s := snapshot(deviceHost("host1", fleet.Device{Address: aDevice.Address()}))
	g := fleet.Guest{ID: "j1g0", Home: "host1", Need: fleet.Resources{Device: aDevice}}
	if got, want := Hindered(s, g), "it has its host's device 0000:03:10.0 for itself, which cannot go with it"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if g.Need.Device = ""; Hindered(s, g) != "" {
		t.Error("a guest without one is hindered")
	}
}

// Any free virtual function of the card does for a guest that begins. One that moves needs the card alone, in the same site, and it is said that
// it gets no function.
func TestFunctionsAreCounted(t *testing.T) {
	card := fleet.Device{Address: "0000:01:00.0", ForNet: true, Functions: 2, Trouble: "it is the card of 2 virtual functions"}
	function := func(address string) fleet.Device {
		return fleet.Device{Address: address, Of: card.Address, ForNet: true}
	}
	need := fleet.Resources{CPUs: 1, MemoryBytes: 1 << 30, Device: fleet.NetFunction}
	ask := Ask{Need: need, Kind: fleet.VM}
	moving := ask
	moving.Alive = &Source{Host: "host9"}
	here, there := "here", "there"
	away := moving
	away.Site = &there
	byName := ask
	byName.Need.Device = "pci:0000:01:10.0"
	for _, c := range []struct {
		devices []fleet.Device
		has     int
		ask     Ask
		want    string
	}{
		{[]fleet.Device{card, function("0000:01:10.0"), function("0000:01:10.2")}, 1, ask, ""},
		{[]fleet.Device{card, function("0000:01:10.0"), function("0000:01:10.2")}, 2, ask, "has given all 2 virtual functions of its card to guests"},
		{[]fleet.Device{card, function("0000:01:10.0"), function("0000:01:10.2")}, 2, ask.IfFree(), ""},
		{[]fleet.Device{card, function("0000:01:10.0")}, 1, moving, ""},
		{[]fleet.Device{card, function("0000:01:10.0")}, 0, away, `is not in site "there", where the job's network is`},
		{[]fleet.Device{card}, 0, ask, "has a card for guests, and no virtual function of it that a guest could have"},
		{[]fleet.Device{{Address: "0000:01:10.0", Of: card.Address}}, 0, ask, "has no card for guests: its agent has no --device-net"},
		{[]fleet.Device{card, function("0000:01:10.0")}, 0, byName, "keeps its device 0000:01:10.0 for guests with --device net"},
	} {
		h := host("host1", 8<<30)
		h.Facts.Devices, h.Facts.Site = c.devices, here
		v := NewSurvey(snapshot(h), nil)
		for range c.has {
			v.Reserve("host1", need)
		}
		if got := v.lacksDevice(&h, c.ask); got != c.want {
			t.Errorf("beside %d: got %q, want %q", c.has, got, c.want)
		}
		_, all := h.Facts.NetFunctions()
		if got := v.OnVirtio("host1", c.ask.Need); (got != "") != (c.ask.Need.Device == fleet.NetFunction && c.has >= all) {
			t.Errorf("beside %d of %d: OnVirtio says %q", c.has, all, got)
		}
	}
	h := host("host1", 8<<30)
	h.Facts.Devices, h.Facts.Guests = []fleet.Device{card, function("0000:01:10.0")}, map[fleet.GuestID]fleet.GuestFacts{"j1g0": {Standby: "there was none"}}
	v := NewSurvey(snapshot(h), nil)
	v.Reserve("host1", need)
	if got := v.lacksDevice(&h, ask); got != "" {
		t.Errorf("beside one on virtio alone: %s", got)
	}
	h.Facts.Devices[1].Guest = "j1g0"
	v = NewSurvey(snapshot(h), nil)
	v.Reserve("host1", need)
	if got, want := v.lacksDevice(&h, ask), "has given all 1 virtual functions of its card to guests"; got != want {
		t.Errorf("beside one that keeps what it cannot use: got %q, want %q", got, want)
	}
	s := snapshot(host("host1", 8<<30))
	if got := Hindered(s, fleet.Guest{ID: "j1g0", Home: "host1", Need: need}); got != "" {
		t.Errorf("a guest with a virtual function is hindered: %s", got)
	}
}

// A guest that moves goes to where a virtual function is free, if any host that can take it has one, however much better another is; else to the best
// by virtio. The reason says which. Functions that guests of one gang take are not free for the others.
func TestMovesPreferFunctions(t *testing.T) {
	card := fleet.Device{Address: "0000:01:00.0", ForNet: true, Functions: 1, Trouble: "it is the card of virtual functions"}
	function := fleet.Device{Address: "0000:01:10.0", Of: card.Address, ForNet: true}
	roomy, small, none := host("host1", 64<<30), host("host2", 2<<30), host("host3", 64<<30)
	roomy.Facts.Devices, small.Facts.Devices = []fleet.Device{card}, []fleet.Device{card, function}
	s := snapshot(roomy, small, none)
	need := fleet.Resources{CPUs: 1, MemoryBytes: 1 << 30, Device: fleet.NetFunction}
	a := Ask{Need: need, Kind: fleet.VM, Alive: &Source{Host: "host9"}}
	const with, without = "with a virtual function", "by virtio, since no host that could take it has a virtual function free"
	for _, policy := range []Policy{Spread{}, LongestIdle{}} {
		v := NewSurvey(s, policy)
		chosen, stuck := v.Clone().PlaceAll([]Ask{a, a})
		if stuck >= 0 || chosen[0].Host != "host2" || !strings.HasPrefix(chosen[0].Reason, with) || chosen[1].Host != "host1" || !strings.HasPrefix(chosen[1].Reason, without) {
			t.Errorf("%s: two guests go to %+v, %d is stuck", policy.Name(), chosen, stuck)
		}
		if at, found := v.Where(a); !found || at != "host2" {
			t.Errorf("%s: Where says %s", policy.Name(), at)
		}
		only := a
		only.Only = []fleet.HostID{"host1"}
		if c, found := v.Best(only); !found || c.Host != "host1" || !strings.HasPrefix(c.Reason, without) {
			t.Errorf("%s: to host1 alone: %+v, %v", policy.Name(), c, found)
		}
		large := a
		large.Need.MemoryBytes = 4 << 30
		if c, found := v.Best(large); !found || c.Host != "host1" {
			t.Errorf("%s: one for which host2 is too small: %+v, %v", policy.Name(), c, found)
		}
		for _, w := range Explain(v, a) {
			if w.Host == "host1" {
				t.Errorf("%s: host1 cannot take it, since it %s", policy.Name(), w.Reason)
			}
		}
		other := a
		other.Need.Device = ""
		if c, found := v.Best(other); !found || c.Host == "host2" || strings.Contains(c.Reason, "virt") {
			t.Errorf("%s: one without a function: %+v, %v", policy.Name(), c, found)
		}
	}
}
