package main

import (
	"bytes"
	"strings"
	"testing"

	"pagurus/act/numa"
	"pagurus/act/numa/recorded"
	"pagurus/decide/topology"
	"pagurus/fleet"
)

// cluster has a host of two nodes and one of eight, with a guest that moved from the first
// to the second.
func cluster(t *testing.T) fleet.Snapshot {
	t.Helper()
	s := fleet.Snapshot{Hosts: map[fleet.HostID]fleet.Host{"mute": {ID: "mute"}}, Guests: map[fleet.GuestID]fleet.Guest{"j1g1": {ID: "j1g1"}}}
	for id, name := range map[fleet.HostID]string{"two": "2n6c2t", "eight": "8n6c"} {
		m, err := numa.Read(recorded.Machine(t, name))
		if err != nil {
			t.Fatal(err)
		}
		s.Hosts[id] = fleet.Host{ID: id, Facts: fleet.Facts{Abilities: map[fleet.Kind]fleet.Abilities{fleet.VM: {Accelerator: fleet.KVM}}, Topology: &m, Guests: map[fleet.GuestID]fleet.GuestFacts{}}}
	}
	need, tune := fleet.Resources{CPUs: 12, MemoryBytes: 8 << 30}, fleet.Tune{NUMA: true, Huge: true, Pin: true}
	shape := topology.For(s.Hosts, "two", fleet.VM, fleet.JobSpec{Need: need, Tune: tune}, "")
	layout := topology.Fit(*s.Hosts["eight"].Facts.Topology, *shape, need, tune, topology.Taken{})
	s.Guests["j1g0"] = fleet.Guest{ID: "j1g0", Home: "eight", Shape: shape}
	s.Hosts["eight"].Facts.Guests["j1g0"] = fleet.GuestFacts{Layout: &layout, Seen: &fleet.Topology{Nodes: s.Hosts["two"].Facts.Topology.Nodes[:1], Level: "x86-64-v3"}}
	return s
}

func TestWhatIsShown(t *testing.T) {
	for _, c := range []struct {
		name  string
		w     tuneWish
		wants []string
	}{
		{"two", tuneWish{0, 8 << 30, "hpc"}, []string{
			"0     0        6      0,2,4,6,8,10,12,14,16,18,20,22", "A guest of 12 CPUs and 8 GiB would see 2 sockets of 6 cores with 1 thread, in 2 nodes, CPUs x86-64-v1",
			"0,2,4,6,8,10 one to one", "! too few huge pages are set aside",
		}},
		{"two", tuneWish{30, 1 << 30, "pin"}, []string{"1 socket of 30 cores with 1 thread, CPUs", "together"}},
		{"two", tuneWish{1, 1 << 30, "off"}, []string{"Its kernel makes huge pages on request"}},
		// A guest is already on the first two nodes.
		{"eight", tuneWish{6, 1 << 30, "pin,numa"}, []string{"73    3        6      42-47", "10 16 16 22"}},
		{"j1g0", tuneWish{}, []string{"Guest j1g0 sees 2 sockets of 6 cores", "itself reports something else:\n  sockets: 1, and not 2\n", "nodes: 1, and not 2", "On eight:", "0-5", "6,7,8,9,10,11 one to one"}},
	} {
		var out bytes.Buffer
		if err := show(&out, cluster(t), c.name, c.w, false); err != nil {
			t.Fatal(err)
		}
		for _, want := range c.wants {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: %q is not in\n%s", c.name, want, out.String())
			}
		}
		out.Reset()
		if err := show(&out, cluster(t), c.name, c.w, true); err != nil || !strings.HasPrefix(out.String(), "{") {
			t.Errorf("as JSON: %q, %v", out.String(), err)
		}
	}
}

func TestWhatCannotBeShown(t *testing.T) {
	for _, c := range []struct {
		name string
		w    tuneWish
		says string
	}{
		{"nobody", tuneWish{}, "no host and no guest"}, {"mute", tuneWish{}, "has not reported"}, {"j1g1", tuneWish{}, "was not started with"},
		{"two", tuneWish{1, 1 << 30, "fast"}, "--tune"}, {"two", tuneWish{-1, 1 << 30, "hpc"}, "--cpus"},
	} {
		if err := show(&bytes.Buffer{}, cluster(t), c.name, c.w, false); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// On a host with isolated CPUs, guests are laid out on those.
func TestAHostWithIsolatedCPUsIsShown(t *testing.T) {
	s := cluster(t)
	h := s.Hosts["two"]
	h.Facts.Isolation = &fleet.Isolation{CPUs: fleet.CPUSet{2}, Changed: 3, Left: []string{"the tick: why"}}
	s.Hosts["two"] = h
	var out bytes.Buffer
	if err := show(&out, s, "two", tuneWish{2, 1 << 30, "pin"}, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"CPU 2 of two is isolated", "left alone: the tick: why", "2 together"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}
