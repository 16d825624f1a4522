package bench

import (
	"testing"

	"pagurus/bench/drive"
	"pagurus/fleet"
)

func TestWhatRunsVirtualMachines(t *testing.T) {
	host := func(accelerator string) fleet.Host {
		return fleet.Host{Facts: fleet.Facts{Abilities: map[fleet.Kind]fleet.Abilities{fleet.VM: {Accelerator: accelerator}}}}
	}
	cluster := func(a, b string) fleet.Snapshot {
		return fleet.Snapshot{Hosts: map[fleet.HostID]fleet.Host{"host1": host(a), "host2": host(b)}}
	}
	for _, c := range []struct {
		of       fleet.Snapshot
		hardware bool
		is       string
	}{
		{cluster("kvm", "kvm"), true, "kvm"},
		{cluster("kvm", "kvm"), false, "KVM without hardware virtualization"},
		{cluster("tcg", "kvm"), true, "tcg"}, // one that is emulated says it of all
		{cluster("tcg", "tcg"), false, "tcg"},
		{cluster("", ""), false, ""},
		{fleet.Snapshot{}, true, ""},
	} {
		if got := acceleratorOf(c.of, c.hardware); got != c.is {
			t.Errorf("%v: %q, not %q", c.of.Hosts, got, c.is)
		}
	}
	r := NewPromises(drive.Pagurus{}, 1)
	r.RunBy("tcg") // before a sitting begins
	r.Sit("a")
	r.RunBy("kvm")
	r.RunBy("") // of a part without a lab
	if got := r.Record.Sittings[0].Accelerator; got != "kvm" {
		t.Errorf("the sitting says %q", got)
	}
}
