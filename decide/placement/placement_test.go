package placement

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pagurus/fleet"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func host(id fleet.HostID, memory int64) fleet.Host {
	return fleet.Host{ID: id, State: fleet.HostUp, Facts: fleet.Facts{
		SeenAt: t0, Connected: true, Capacity: fleet.Resources{CPUs: 4, MemoryBytes: memory},
		Abilities: map[fleet.Kind]fleet.Abilities{fleet.VM: {Live: true, Accelerator: "tcg"}},
	}}
}

func snapshot(hosts ...fleet.Host) fleet.Snapshot {
	s := fleet.NewSnapshot()
	s.At = t0
	for _, h := range hosts {
		s.Hosts[h.ID] = h
	}
	return s
}

// ranked returns every host that can take the guest, best first.
func ranked(v *Survey, a Ask) []Choice {
	var out []Choice
	if a.Only == nil {
		for _, h := range v.Hosts() {
			a.Only = append(a.Only, h.ID)
		}
	}
	for left := slices.Clone(a.Only); len(left) > 0; {
		a.Only = left
		c, found := v.Best(a)
		if !found {
			break
		}
		out = append(out, c)
		left = slices.DeleteFunc(left, func(id fleet.HostID) bool { return id == c.Host })
	}
	return out
}

func TestFiltersSayWhy(t *testing.T) {
	ask := Ask{Need: fleet.Resources{CPUs: 1, MemoryBytes: 1 << 30}, Kind: fleet.VM}
	live := ask
	live.Alive = &Source{Host: "host0", Needs: fleet.Abilities{Live: true, Accelerator: "tcg", CPU: "max"}, Known: true}
	suits := func(processor string) Ask {
		a := live
		from := *a.Alive
		from.Needs.Processor = processor
		a.Alive = &from
		return a
	}
	seen, wide := suits("aes sse"), suits("a b c d e")
	with := func(change func(*fleet.Host)) fleet.Host {
		h := host("host1", 4<<30)
		change(&h)
		return h
	}
	able := func(a fleet.Abilities) fleet.Host {
		return with(func(h *fleet.Host) { h.Facts.Abilities = map[fleet.Kind]fleet.Abilities{fleet.VM: a} })
	}
	for _, c := range []struct {
		host fleet.Host
		ask  Ask
		want string
	}{
		{with(func(h *fleet.Host) {}), ask, ""},
		{with(func(h *fleet.Host) { h.State = fleet.HostDraining }), ask, "is draining"},
		{with(func(h *fleet.Host) { h.Facts.SeenAt = time.Time{} }), ask, "has not been heard from yet"},
		{with(func(h *fleet.Host) { h.Facts.SeenAt = t0.Add(-20 * time.Second) }), ask, "has not been heard from for 20s"},
		{with(func(h *fleet.Host) { h.Facts.Abilities = nil }), ask, "cannot run guests of kind vm"},
		{able(fleet.Abilities{Trouble: "QEMU is missing"}), ask, "cannot run guests of kind vm: QEMU is missing"},
		{with(func(h *fleet.Host) { h.Facts.Capacity.MemoryBytes = 512 << 20 }), ask, "has 512 MiB of memory free, 1.0 GiB needed"},
		{with(func(h *fleet.Host) {}), Ask{Kind: fleet.VM, Only: []fleet.HostID{"host2"}}, "is not among the hosts asked for"},
		{with(func(h *fleet.Host) { h.Facts.Owner = &fleet.Owner{Present: true} }), ask, "has its owner there"},
		{with(func(h *fleet.Host) {}), live, ""},
		{with(func(h *fleet.Host) { h.ID = "host0" }), live, "is where it runs now"},
		{with(func(h *fleet.Host) { h.Facts.Protocol = 1 }), live, ""},
		{with(func(h *fleet.Host) { h.Facts.Protocol = 2 }), live, "its agent speaks version 2 of the protocol and the agent of host0 version 0, and only versions that are one apart work together: upgrade the agent of host0"},
		{with(func(h *fleet.Host) { h.Facts.Protocol = 2 }), ask, ""},
		{able(fleet.Abilities{Accelerator: "tcg"}), live, "cannot take in a running guest"},
		{able(fleet.Abilities{Live: true, Accelerator: "kvm"}), live, "runs guests by kvm, the guest runs by tcg"},
		{able(fleet.Abilities{Live: true, Accelerator: "tcg", CPU: "v3"}), live, "shows guests the CPU v3, the guest sees max"},
		{able(fleet.Abilities{Live: true, Accelerator: "tcg", CPU: "max", Processor: "aes avx sse"}), seen, ""},
		{able(fleet.Abilities{Live: true, Accelerator: "tcg", CPU: "max", Processor: "sse"}), seen, "has a processor without aes, which the guest's programs may use"},
		{able(fleet.Abilities{Live: true, Accelerator: "tcg", CPU: "max", Processor: "x"}), wide, "has a processor without a, b, c, d and 1 more, which the guest's programs may use"},
		{able(fleet.Abilities{Live: true, Accelerator: "tcg", CPU: "max"}), seen, ""},
	} {
		v := NewSurvey(snapshot(c.host), nil)
		if got := Unfit(v, &c.host, c.ask); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
		if _, fits := v.Best(c.ask); fits != (c.want == "") {
			t.Errorf("%q: Best and Explain disagree", c.want)
		}
	}
}

// TestCPUForLife: a guest moves only where it sees the CPU that it was started with, whatever guests get that start there, or at its home by
// now. One that begins at a checkpoint likewise.
func TestCPUForLife(t *testing.T) {
	can := func(cpu, model, level string) fleet.Host {
		h := host("host1", 4<<30)
		h.Facts.Abilities = map[fleet.Kind]fleet.Abilities{fleet.VM: {Live: true, Checkpoint: true, Accelerator: fleet.KVM, CPU: cpu, Model: model}}
		h.Facts.Topology = &fleet.Topology{Level: level}
		return h
	}
	lacking := can("Old", "qemu64,-x2apic", "x86-64-v3")
	lacking.Facts.Abilities[fleet.VM] = fleet.Abilities{Live: true, Checkpoint: true, Accelerator: fleet.KVM, CPU: "Old", Model: "qemu64,-x2apic", Lacks: "pni"}
	for _, c := range []struct {
		model string // of the guest, on a host with the processor "New"
		host  fleet.Host
		want  string
	}{
		{"", can("New", "host", "x86-64-v4"), ""},
		{"", can("New", "", "x86-64-v4"), ""},
		{"", can("New", "x86-64-v2", "x86-64-v4"), ""},
		{"", can("Old", "host", "x86-64-v3"), "shows guests the CPU Old, the guest sees New"},
		{"x86-64-v3", can("Old", "host", "x86-64-v3"), ""},
		{"x86-64-v3", can("Old", "x86-64-v2", "x86-64-v4"), ""},
		{"x86-64-v4", can("Old", "host", "x86-64-v3"), "has no CPU of level x86-64-v4, which the guest sees"},
		{"x86-64-v2", can("New", "", "x86-64-v4"), "has an agent that shows guests its own CPU alone, the guest sees x86-64-v2"},
		{"qemu64,-x2apic", can("New", "host", "x86-64-v4"), ""},
		{"qemu64,-x2apic", can("Old", "qemu64,-x2apic", "x86-64-v3"), ""},
		{"qemu64,-x2apic", can("Old", "host", "x86-64-v3"), "has another processor and starts guests with the CPU host, the guest sees qemu64,-x2apic"},
		{"qemu64,-x2apic", lacking, "has another processor, and not both have all of qemu64,-x2apic, which the guest sees: pni"},
		{"host,-avx", can("Old", "host,-avx", "x86-64-v3"), "has the CPU Old, the guest sees New as host,-avx"},
	} {
		source := Source{Host: "host0", Known: true, Needs: fleet.Abilities{Live: true, Accelerator: fleet.KVM, CPU: "New", Model: c.model}}
		asks := []Ask{{Need: fleet.Resources{CPUs: 1, MemoryBytes: 1 << 20}, Kind: fleet.VM, Alive: &source}, {Need: fleet.Resources{CPUs: 1, MemoryBytes: 1 << 20}, Kind: fleet.VM, Restores: &source}}
		for _, ask := range asks {
			v := NewSurvey(snapshot(c.host), nil)
			if got := Unfit(v, &c.host, ask); got != c.want {
				t.Errorf("a guest with %q (alive: %v): got %q, want %q", c.model, ask.Alive != nil, got, c.want)
			}
			if _, fits := v.Best(ask); fits != (c.want == "") {
				t.Errorf("%q: Best and Explain disagree", c.want)
			}
		}
	}
}

// TestCPUOfTheCluster: where the cluster's rules name a level, virtual machines start only where the processor has it, and hosts that emulate them,
// containers, and guests that have their CPU already are not concerned.
func TestCPUOfTheCluster(t *testing.T) {
	can := func(id fleet.HostID, level, accelerator, model string) fleet.Host {
		h := host(id, 4<<30)
		h.Facts.Abilities = map[fleet.Kind]fleet.Abilities{fleet.VM: {Live: true, Checkpoint: true, Accelerator: accelerator, CPU: "New", Model: model}, fleet.Container: {}}
		if level != "" {
			h.Facts.Topology = &fleet.Topology{Level: level}
		}
		return h
	}
	high, low, unknown := can("high", "x86-64-v4", fleet.KVM, "host"), can("low", "x86-64-v2", fleet.KVM, "host"), can("unknown", "", fleet.KVM, "host")
	older, emulated := can("older", "x86-64-v4", fleet.KVM, ""), can("emulated", "x86-64-v2", fleet.TCG, "")
	s := snapshot(high, low, unknown, older, emulated)
	ask := Ask{Need: fleet.Resources{CPUs: 1, MemoryBytes: 1 << 20}, Kind: fleet.VM}
	lacks := "has no CPU of level x86-64-v3, which virtual machines get that start"
	for level, want := range map[string]map[fleet.HostID]string{
		"": {}, fleet.HostCPU: {},
		"x86-64-v2": {"unknown": strings.Replace(lacks, "v3", "v2", 1), "older": "has an agent that shows guests its own CPU alone, not x86-64-v2, which virtual machines get that start"},
		"x86-64-v3": {"low": lacks, "unknown": lacks, "older": "has an agent that shows guests its own CPU alone, not x86-64-v3, which virtual machines get that start"},
	} {
		s.Cluster.Rules.CPU = level
		v := NewSurvey(s, nil)
		got := map[fleet.HostID]string{}
		for _, w := range Explain(v, ask) {
			got[w.Host] = w.Reason
		}
		if !maps.Equal(got, want) {
			t.Errorf("with %q: got %q, want %q", level, got, want)
		}
		for id := range s.Hosts {
			only := ask
			only.Only = []fleet.HostID{id}
			if _, fits := v.Best(only); fits != (want[id] == "") {
				t.Errorf("with %q Best and Explain disagree on %s", level, id)
			}
			only.Kind = fleet.Auto
			if c, fits := v.Best(only); !fits || (want[id] != "") && c.Kind != fleet.Container {
				t.Errorf("with %q a guest of any kind on %s is %+v", level, id, c)
			}
		}
		moves := ask
		moves.Alive = &Source{Host: "high", Known: true, Needs: fleet.Abilities{Live: true, Accelerator: fleet.KVM, CPU: "New"}}
		if reason := Unfit(v, &low, moves); reason != "" {
			t.Errorf("with %q a guest that runs does not move: %s", level, reason)
		}
	}
}

func TestSpreadPrefersRoomThenProcessorsThenName(t *testing.T) {
	big, busy, small := host("a-small", 2<<30), host("b-busy", 8<<30), host("c-big", 8<<30)
	big, small = small, big
	small.Facts.LoadCPUs = 3 // from a job that has just ended: does not count
	world := snapshot(big, busy, small)
	world.Guests["g"] = fleet.Guest{ID: "g", Home: "b-busy", State: fleet.GuestRunning, Need: fleet.Resources{CPUs: 8, MemoryBytes: 1}}
	got := ranked(NewSurvey(world, Spread{}), Ask{Need: fleet.Resources{MemoryBytes: 1 << 30}, Kind: fleet.VM})
	var order []fleet.HostID
	for _, c := range got {
		order = append(order, c.Host)
	}
	if want := []fleet.HostID{"c-big", "a-small", "b-busy"}; !reflect.DeepEqual(order, want) {
		t.Errorf("got %v, want %v", order, want)
	}
	if want := "8.0 GiB of 8.0 GiB memory free, 0.0 of 4 CPUs busy, 0 guests there"; got[0].Reason != want {
		t.Errorf("got %q", got[0].Reason)
	}
}

func TestWordsStayShort(t *testing.T) {
	var whys []Why
	for i := range 12 {
		whys = append(whys, Why{fleet.HostID(fmt.Sprintf("h%02d", i)), "is draining"})
	}
	whys = append(whys, Why{"x", "is left out"})
	want := "h00, h01, h02, h03, h04, h05, h06, h07 and 4 more: is draining; x is left out"
	if got := Words(whys); got != want {
		t.Errorf("got %q", got)
	}
}

// A moving guest holds memory on both hosts; an ended one holds none.
func TestSurveyCountsGuestsOnTheirWay(t *testing.T) {
	s := snapshot(host("a", 4<<30), host("b", 4<<30))
	need := fleet.Resources{MemoryBytes: 1 << 30}
	s.Guests["g0"] = fleet.Guest{ID: "g0", Home: "a", State: fleet.GuestMoving, Migration: "m1.g0", Need: need}
	s.Guests["g1"] = fleet.Guest{ID: "g1", Home: "a", State: fleet.GuestEnded, Need: need}
	s.Migrations["m1.g0"] = fleet.Migration{ID: "m1.g0", From: "a", To: "b", Phase: fleet.Copying}
	v := NewSurvey(s, nil)
	for _, h := range v.Hosts() {
		if v.FreeBytes(&h) != 3<<30 || v.Guests(h.ID) != 1 {
			t.Errorf("%s: %d free, %d guests", h.ID, v.FreeBytes(&h), v.Guests(h.ID))
		}
	}
	b := s.Hosts["b"]
	if why := Unfit(v, &b, Ask{Kind: fleet.VM, NoArrivals: true}); why != "takes in another move" {
		t.Errorf("b takes in a move: %q", why)
	}
	if out, in := v.Busy("a"); out != 1 || in != 0 {
		t.Errorf("a: %d out, %d in", out, in)
	}
}

func TestEveryHostIsRankedOrExplained(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := snapshot()
		for i := range rapid.IntRange(0, 8).Draw(t, "hosts") {
			h := host(fleet.HostID(fmt.Sprintf("h%d", i)), rapid.Int64Range(0, 8<<30).Draw(t, "memory"))
			h.Facts.SeenAt = t0.Add(-time.Duration(rapid.IntRange(0, 30).Draw(t, "silent")) * time.Second)
			h.Facts.LoadCPUs = rapid.Float64Range(0, 4).Draw(t, "load")
			s.Hosts[h.ID] = h
		}
		v := NewSurvey(s, nil)
		a := Ask{Need: fleet.Resources{MemoryBytes: rapid.Int64Range(0, 8<<30).Draw(t, "need")}, Kind: fleet.VM}
		ranked := ranked(v, a)
		if len(ranked)+len(Explain(v, a)) != len(s.Hosts) {
			t.Fatal("a host was neither ranked nor explained")
		}
		for i := 1; i < len(ranked); i++ {
			if ranked[i-1].Score < ranked[i].Score {
				t.Fatal("not best first")
			}
		}
		best, found := v.Best(a)
		if found != (len(ranked) > 0) || found && !reflect.DeepEqual(best, ranked[0]) {
			t.Fatalf("best is %+v of %+v", best, ranked)
		}
	})
}
