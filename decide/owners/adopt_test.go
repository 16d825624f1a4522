package owners

import (
	"strings"
	"testing"

	"pagurus/fleet"
)

// A policy chosen at the machine is taken once; what cannot be one is not, and is not asked for again.
func TestAdopt(t *testing.T) {
	wish := func(id string, p fleet.OwnerPolicy) fleet.Host {
		return fleet.Host{ID: "h", Policy: fleet.OwnerPolicy{Claimed: true}, Facts: fleet.Facts{Owner: &fleet.Owner{Wish: &fleet.OwnerWish{ID: id, Policy: p}}}}
	}
	h, changed := Adopt(wish("1", fleet.OwnerPolicy{Owned: true, Vacate: fleet.Suspend}))
	if !changed || h.Policy.Vacate != fleet.Suspend || !h.Policy.Claimed || h.Wished != "1" {
		t.Errorf("%+v", h)
	}
	if _, changed := Adopt(h); changed {
		t.Error("it is taken twice")
	}
	if h, changed := Adopt(wish("2", fleet.OwnerPolicy{Owned: true, Cap: 7})); !changed || h.Policy.Owned || h.Wished != "2" {
		t.Errorf("%+v", h)
	}
	if _, changed := Adopt(wish(strings.Repeat("x", 1000), fleet.OwnerPolicy{})); changed {
		t.Error("a name without end")
	}
	if _, changed := Adopt(fleet.Host{}); changed {
		t.Error("no wish")
	}
}
