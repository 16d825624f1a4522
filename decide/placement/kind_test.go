package placement

import (
	"strings"
	"testing"

	"pagurus/fleet"
)

// An open kind: KVM before Xen before containers before emulation, while there is room. So a job can
// have all kinds.
func TestKindLeftOpen(t *testing.T) {
	able := func(id fleet.HostID, memory int64, can map[fleet.Kind]fleet.Abilities) fleet.Host {
		h := host(id, memory)
		h.Facts.Abilities = can
		return h
	}
	emulated, kvm, criu := fleet.Abilities{Accelerator: "tcg"}, fleet.Abilities{Accelerator: fleet.KVM}, fleet.Abilities{Live: true}
	slow := able("slow", 64<<30, map[fleet.Kind]fleet.Abilities{fleet.VM: emulated})
	light := able("light", 8<<30, map[fleet.Kind]fleet.Abilities{fleet.VM: emulated, fleet.Container: criu})
	fast := able("fast", 1<<30, map[fleet.Kind]fleet.Abilities{fleet.VM: kvm, fleet.Container: criu})
	domains := able("domains", 1<<30, map[fleet.Kind]fleet.Abilities{fleet.VM: {Trouble: "a Xen host"}, fleet.Container: {Trouble: "a Xen host"}, fleet.Xen: criu})
	ask := Ask{Need: fleet.Resources{CPUs: 1, MemoryBytes: 1 << 30}, Kind: fleet.Auto}
	v := NewSurvey(snapshot(slow, light, fast, domains), nil)
	for _, want := range []struct {
		host fleet.HostID
		kind fleet.Kind
		why  string
	}{{"fast", fleet.VM, "a vm, since KVM works there"}, {"domains", fleet.Xen, "a guest of Xen, since"}, {"light", fleet.Container, "a container, since"}} {
		got, _ := v.Best(ask)
		if got.Host != want.host || got.Kind != want.kind || !strings.HasPrefix(got.Reason, want.why) {
			t.Errorf("%+v, want %+v", got, want)
		}
		v.Reserve(got.Host, ask.Need)
	}
	none := able("none", 8<<30, map[fleet.Kind]fleet.Abilities{fleet.VM: {Trouble: "no QEMU"}, fleet.Container: {Trouble: "no CRIU"}})
	v = NewSurvey(snapshot(slow, none), nil)
	if got := ranked(v, ask); len(got) != 1 || got[0].Host != "slow" || got[0].Kind != fleet.VM || !strings.HasPrefix(got[0].Reason, "an emulated vm") {
		t.Errorf("%+v", got)
	}
	if got, want := Unfit(v, &none, ask), "cannot run guests of kind vm: no QEMU, and cannot run guests of kind container: no CRIU"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	ask.Kind = fleet.Xen
	if got, want := Unfit(v, &none, ask), "cannot run guests of kind xen"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestKindsAreSaidOnceWhereTheyAreAlike(t *testing.T) {
	vm, container := Choice{Reason: "a vm, since KVM works there; it has the most room"}, Choice{Reason: "a container, since; room"}
	for want, chosen := range map[string][]Choice{
		"": nil,
		"guest j1g0 is a vm, since KVM works there":                                                 {vm},
		"guests j1g0 to j1g1 are each a vm, since KVM works there|guest j1g2 is a container, since": {vm, vm, container},
	} {
		if got := strings.Join(Kinds(fleet.Auto, []fleet.GuestID{"j1g0", "j1g1", "j1g2"}, chosen), "|"); got != want {
			t.Errorf("said is %q, want %q", got, want)
		}
	}
	if got := Kinds(fleet.VM, []fleet.GuestID{"j1g0"}, []Choice{vm}); got != nil {
		t.Errorf("the kind was given, and the explanation is %q", got)
	}
}
