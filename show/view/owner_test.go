package view

import (
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// owners is a cluster of hosts with owners.
func owners() fleet.Snapshot {
	s := busy()
	set := func(id fleet.HostID, p fleet.OwnerPolicy, o fleet.Owner) {
		h := s.Hosts[id]
		o.Present = o.State.There()
		h.Policy, h.Facts.Owner = p, &o
		h.ForOwner = o.State == fleet.OwnerPresent && p.Vacate == ""
		s.Hosts[id] = h
	}
	ago := func(d time.Duration) time.Time { return noon.Add(-d) }
	set("host1", fleet.OwnerPolicy{Owned: true}, fleet.Owner{State: fleet.OwnerPresent, Since: ago(42 * time.Second), LastSign: ago(time.Second),
		LoadCPUs: 1.37, Why: "others use 1.4 CPUs"})
	set("host10", fleet.OwnerPolicy{Owned: true, Vacate: fleet.Stay, Cap: 0.5}, fleet.Owner{State: fleet.OwnerLeaving, Since: ago(time.Hour), LastSign: ago(4 * time.Minute),
		Deaf: []string{"input: no logind"}})
	set("host3", fleet.OwnerPolicy{Owned: true, Vacate: fleet.Suspend}, fleet.Owner{State: fleet.OwnerAbsent, Since: ago(26 * time.Hour), LastSign: ago(26 * time.Hour)})
	set("host2", fleet.OwnerPolicy{}, fleet.Owner{LoadCPUs: 0.02})
	j := s.Jobs["j2"]
	j.Spec.Class = fleet.Gold
	s.Jobs["j2"] = j
	return s
}

func TestOwners(t *testing.T) {
	golden(t, "owners", Read(owners()).HostTable().Text())
}

func TestPolicyText(t *testing.T) {
	h, c := Host{Host: fleet.Host{ID: "host1"}}, Cluster{}
	if got := c.PolicyText(h); got != "host1 has no owner" {
		t.Error(got)
	}
	h.Policy = fleet.OwnerPolicy{Owned: true, Nowhere: fleet.Stay, Preset: "boinc", IdleAfter: 15 * time.Minute, Cap: 0.5, Claimed: true, Exclusive: []string{"blender"},
		Hours: fleet.Hours{From: 19*time.Hour + 30*time.Minute, To: 7 * time.Hour}}
	for _, want := range []string{"the cluster's policy", "predictive", "those that cannot leave stay", "boinc", "15m", "19:30-07:00", "50 %", "blender", "claimed it by hand"} {
		if got := c.PolicyText(h); !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
	h.Policy.Vacate = fleet.Suspend
	if got := c.PolicyText(h); !strings.Contains(got, "guests are suspended when its owner stays") {
		t.Error(got)
	}
}

func TestNewsOfGuests(t *testing.T) {
	at := func(ids ...fleet.GuestID) (a fleet.OwnerAnswer) {
		for _, id := range ids {
			a.Guests = append(a.Guests, fleet.OwnerGuest{ID: id})
		}
		a.Host = "office3"
		return a
	}
	for _, c := range []struct {
		before, now fleet.OwnerAnswer
		want        string
	}{
		{at(), at(), ""},
		{at("j1g0"), at("j1g0"), ""},
		{at(), at("j1g0"), "j1g0 came to office3: 1 guest now."},
		{at("j1g0"), at("j2g0"), "j2g0 came to office3, j1g0 left office3: 1 guest now."},
		{at("a", "b", "c", "d"), at(), "4 guests left office3: none is here now."},
	} {
		if got := OwnerNews(c.before, c.now); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
