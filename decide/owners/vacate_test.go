package owners

import (
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

var vacateNoon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func host(state fleet.HostState, forOwner bool, owner fleet.OwnerState, vacate fleet.Vacate) fleet.Host {
	return fleet.Host{
		ID: "host1", State: state, ForOwner: forOwner, Policy: fleet.OwnerPolicy{Owned: true, Vacate: vacate},
		Facts: fleet.Facts{SeenAt: vacateNoon, Connected: true, Owner: &fleet.Owner{State: owner, Present: owner.There()}},
	}
}

// Every host, owner and policy: the result, and that it is stable.
func TestHost(t *testing.T) {
	for _, state := range []fleet.HostState{fleet.HostUp, fleet.HostDraining} {
		for _, forOwner := range []bool{false, true} {
			for _, owner := range []fleet.OwnerState{"", fleet.OwnerAbsent, fleet.OwnerReturning, fleet.OwnerPresent, fleet.OwnerLeaving} {
				for _, vacate := range []fleet.Vacate{"", fleet.Evacuate, fleet.Suspend, fleet.Stay} {
					if forOwner && state == fleet.HostUp {
						continue // there is no such host
					}
					h := host(state, forOwner, owner, vacate)
					leaves := vacate == "" || vacate == fleet.Evacuate
					got, changed := Vacate(h, leaves, vacateNoon, vacateNoon)
					want := state
					switch {
					case state == fleet.HostUp && owner == fleet.OwnerPresent && leaves:
						want = fleet.HostDraining
					case forOwner && (!owner.There() || !leaves):
						want = fleet.HostUp
					}
					if got.State != want || changed != (want != state) {
						t.Errorf("%s (for its owner: %v), owner %q, %q: became %s (%v), want %s", state, forOwner, owner, vacate, got.State, changed, want)
					}
					if got.ForOwner && got.State != fleet.HostDraining || state == fleet.HostDraining && !forOwner && got.ForOwner {
						t.Errorf("%s (for its owner: %v) became %s for its owner", state, forOwner, got.State)
					}
					if again, twice := Vacate(got, leaves, vacateNoon, vacateNoon); twice {
						t.Errorf("%s became %s and then %s", state, got.State, again.State)
					}
				}
			}
		}
	}
}

// A host that is silent or has no sensors does not change.
func TestSilentHost(t *testing.T) {
	for name, change := range map[string]func(*fleet.Host){
		"silent":          func(h *fleet.Host) { h.Facts.SeenAt = vacateNoon.Add(-time.Hour) },
		"not connected":   func(h *fleet.Host) { h.Facts.Connected = false },
		"without sensors": func(h *fleet.Host) { h.Facts.Owner = nil },
	} {
		for _, h := range []fleet.Host{host(fleet.HostUp, false, fleet.OwnerPresent, ""), host(fleet.HostDraining, true, fleet.OwnerAbsent, "")} {
			change(&h)
			if got, changed := Vacate(h, true, vacateNoon, vacateNoon); changed {
				t.Errorf("a host that is %s became %s", name, got.State)
			}
		}
	}
}

// Every state of an owner is explained, with its effect.
func TestExplain(t *testing.T) {
	for _, x := range []struct {
		owner    fleet.OwnerState
		vacate   fleet.Vacate
		forOwner bool
		want     string
	}{
		{fleet.OwnerAbsent, "", false, "the last sign of them was 1m0s ago"},
		{fleet.OwnerLeaving, "", false, "gone after 15m0s"},
		{fleet.OwnerReturning, "", false, "If the owner stays for 20s, guests leave"},
		{fleet.OwnerReturning, fleet.Stay, false, "takes no guests"},
		{fleet.OwnerPresent, "", true, "emptied for its owner"},
		{fleet.OwnerPresent, fleet.Suspend, false, "suspended"},
	} {
		h := host(fleet.HostUp, x.forOwner, x.owner, x.vacate)
		h.Facts.Owner.LastSign, h.Facts.Owner.Deaf = vacateNoon.Add(-time.Minute), []string{"input: no logind"}
		got := strings.Join(ExplainVacating(h, fleet.Rules{}, vacateNoon), " ")
		if !strings.Contains(got, x.want) || !strings.Contains(got, "no logind") {
			t.Errorf("%s, %q: %q", x.owner, x.vacate, got)
		}
	}
	if got := ExplainVacating(host(fleet.HostUp, false, "", ""), fleet.Rules{}, vacateNoon); got != nil {
		t.Errorf("a host without an owner: %q", got)
	}
}

func TestAmend(t *testing.T) {
	h := host(fleet.HostUp, false, "", "")
	h, reason := AmendHost(h, fleet.Request{Verb: fleet.Claim})
	if reason != "" || !h.Policy.Claimed || !h.Policy.Owned {
		t.Fatalf("claimed: %+v, %q", h.Policy, reason)
	}
	p := fleet.OwnerPolicy{Owned: true, Vacate: fleet.Suspend, IdleAfter: time.Minute, Cap: 0.5, Preset: "boinc", Exclusive: []string{"blender"}}
	h, reason = AmendHost(h, fleet.Request{Verb: fleet.SetPolicy, Policy: &p})
	if reason != "" || !h.Policy.Claimed || h.Policy.Vacate != fleet.Suspend || h.Policy.Cap != 0.5 {
		t.Errorf("a policy for a host that is claimed: %+v, %q", h.Policy, reason)
	}
	if h, _ = AmendHost(h, fleet.Request{Verb: fleet.Release}); h.Policy.Claimed || h.Policy.Preset != "boinc" {
		t.Errorf("released: %+v", h.Policy)
	}
	for want, bad := range map[string]*fleet.OwnerPolicy{
		"no policy":                   nil,
		"--vacate":                    {Vacate: "explode"},
		"no room":                     {Vacate: fleet.Evacuate, Nowhere: fleet.Evacuate},
		`suspend cannot "stay" where`: {Vacate: fleet.Suspend, Nowhere: fleet.Stay},
		"--idle-after":                {IdleAfter: -time.Second},
		"--hours":                     {Hours: fleet.Hours{From: -time.Hour}},
		"--cap":                       {Cap: 1.5},
		"no preset":                   {Preset: "slurm"},
		"fewer":                       {Exclusive: make([]string, 65)},
		"program":                     {Exclusive: []string{"a-name-that-is-too-long"}},
	} {
		got, reason := AmendHost(h, fleet.Request{Verb: fleet.SetPolicy, Policy: bad})
		if !strings.Contains(reason, want) || got.Policy.Preset != "boinc" {
			t.Errorf("%+v was refused with %q, want %q in it; the policy is %+v", bad, reason, want, got.Policy)
		}
	}
}
