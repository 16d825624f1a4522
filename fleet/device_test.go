package fleet

import (
	"strings"
	"testing"
)

func TestParsePassthrough(t *testing.T) {
	for word, want := range map[string]Passthrough{
		"": "", "pci:0000:03:10.0": "pci:0000:03:10.0", "pci:03:1f.7": "pci:0000:03:1f.7", "pci:00AB:FF:10.2": "pci:00ab:ff:10.2",
	} {
		if got, err := ParsePassthrough(word); got != want || err != nil || got.Refused() != "" {
			t.Errorf("%q: got %q, %v, %q", word, got, err, got.Refused())
		}
	}
	for word, want := range map[string]string{
		"gpu": "is no device that a guest can have", "0000:03:10.0": "pci: and an address",
		"pci:": "is not the address", "pci:3:10.0": "is not the address", "pci:0000:03:10.8": "is not the address", "pci:0000:03:20.0": "is not the address", "pci:../../x": "is not the address",
	} {
		if got, err := ParsePassthrough(word); err == nil || !strings.Contains(err.Error(), want) || Passthrough(word).Refused() == "" {
			t.Errorf("%q: got %q, %v", word, got, err)
		}
	}
	if said := Passthrough("pci:03:10.0").Refused(); !strings.Contains(said, "pci:0000:03:10.0") {
		t.Errorf("a short address in a request: %q", said)
	}
}

func TestJobsWithDevices(t *testing.T) {
	for _, c := range []struct {
		spec JobSpec
		want string
	}{
		{JobSpec{}, ""},
		{JobSpec{Kind: Container}, ""},
		{JobSpec{Need: Resources{Device: "pci:0000:03:10.0"}}, ""},
		{JobSpec{Kind: VM, Need: Resources{Device: "pci:0000:03:10.0"}}, ""},
		{JobSpec{Kind: Container, Need: Resources{Device: "pci:0000:03:10.0"}}, "give --kind vm"},
		{JobSpec{Kind: Auto, Need: Resources{Device: "pci:0000:03:10.0"}}, "give --kind vm"},
		{JobSpec{Kind: VM, Need: Resources{Device: "pci:0000:03:10.0"}, Checkpoint: &CheckpointPlan{}}, "leave out --checkpoint"},
		{JobSpec{Kind: VM, Need: Resources{Device: "/dev/mem"}}, "is no device"},
	} {
		if got := refusedDevice(c.spec); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%+v: got %q, want %q", c.spec, got, c.want)
		}
	}
}

// A virtual function of the host's card, any that is free, keeps no guest from moving, but from checkpoints.
func TestNetFunction(t *testing.T) {
	got, err := ParsePassthrough("net")
	if err != nil || got != NetFunction || got.Refused() != "" || got.Holds() != "" || got.Kept() == "" || Passthrough("").Kept() != "" {
		t.Errorf("got %q, %v, which holds a guest: %q, and out of checkpoints: %q", got, err, got.Holds(), got.Kept())
	}
	one := Device{Address: "0000:01:10.0", Of: "0000:01:00.0", ForNet: true}
	held := one
	held.Trouble = "it shares an IOMMU group"
	for _, c := range []struct {
		devices   []Device
		card      bool
		functions int
	}{
		{nil, false, 0},
		{[]Device{{Address: "0000:01:00.0"}, {Address: "0000:01:10.0", Of: "0000:01:00.0"}}, false, 0},
		{[]Device{{Address: "0000:01:00.0", ForNet: true, Trouble: "it is the card of 2 virtual functions"}, one, held, one}, true, 2},
	} {
		if card, functions := (Facts{Devices: c.devices}).NetFunctions(); card != c.card || functions != c.functions {
			t.Errorf("of %+v: %v, %d", c.devices, card, functions)
		}
	}
}

func TestParseVLANs(t *testing.T) {
	for word, want := range map[string]VLANs{"": {}, "7": {7, 7}, "100-199": {100, 199}, "1-4094": {1, 4094}} {
		if got, err := ParseVLANs(word); err != nil || got != want {
			t.Errorf("%q: %v, %v", word, got, err)
		}
	}
	for _, word := range []string{"0-5", "5-4", "1-4095", "-5", "a-b", "5-", "1-2-3", "70000"} {
		if got, err := ParseVLANs(word); err == nil || !strings.Contains(err.Error(), "100-199") {
			t.Errorf("%q: %v, %v", word, got, err)
		}
	}
}
