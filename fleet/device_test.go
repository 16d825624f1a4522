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
		"net": "is no device that a guest can have", "gpu": "is no device", "0000:03:10.0": "write pci: and an address",
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
