package controller

import (
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// An owner's policy is stored and reaches the host. The owner's presence empties the host,
// and the absence undoes it.
func TestOwner(t *testing.T) {
	r := newRig(t)
	one := r.attach("host1")
	r.attach("host2")
	j := r.submit(1)
	home := r.until("the job to run", running(j)).Guests[fleet.GuestID(string(j)+"g0")].Home
	if home == "host2" {
		one = nil // its agent is not used
	}
	ask := func(q fleet.Request) {
		t.Helper()
		if _, err := r.client.Ask(r.ctx, q); err != nil {
			t.Fatal(err)
		}
	}
	ask(fleet.Request{Verb: fleet.SetPolicy, Host: "host1", Policy: &fleet.OwnerPolicy{Owned: true, Cap: 0.5}})
	if one != nil {
		one.hears("what its owner agreed to", func(d wire.Down) bool { return d.Wanted != nil && d.Wanted.Policy.Owned && d.Wanted.Policy.Cap == 0.5 })
	}
	ask(fleet.Request{Verb: fleet.SetPolicy, Host: home, Policy: &fleet.OwnerPolicy{Owned: true}})
	ask(fleet.Request{Verb: fleet.Claim, Host: home})
	ask(fleet.Request{Verb: fleet.Release, Host: home})
	r.owners.Store(home, fleet.OwnerPresent)
	s := r.until("the host to be emptied", func(s fleet.Snapshot) bool {
		g := s.Guests[fleet.GuestID(string(j)+"g0")]
		return g.Home != home && g.State == fleet.GuestRunning
	})
	h := s.Hosts[home]
	if there := h.Facts.Owner.ThereFor(s.At); h.State != fleet.HostDraining || !h.ForOwner || there < time.Minute || there > 2*time.Minute {
		t.Errorf("%s is %s (for its owner: %v), who is there for %s", home, h.State, h.ForOwner, there)
	}
	r.owners.Store(home, fleet.OwnerAbsent)
	s = r.until("the host to be free", func(s fleet.Snapshot) bool { return s.Hosts[home].State == fleet.HostUp })
	if p := s.Hosts[home].Policy; !p.Owned || p.Claimed {
		t.Errorf("its owner agreed to %+v", p)
	}
	for _, q := range []fleet.Request{
		{Verb: fleet.SetPolicy, Host: home}, {Verb: fleet.SetPolicy, Host: home, Policy: &fleet.OwnerPolicy{Vacate: "explode"}}, {Verb: fleet.Claim, Host: "none"},
	} {
		if _, err := r.client.Ask(r.ctx, q); err == nil {
			t.Errorf("%+v was taken", q)
		}
	}
}
