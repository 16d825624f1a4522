package planner

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// owner makes a host's sensors say where its owner is.
func (w *world) owner(id fleet.HostID, s fleet.OwnerState) {
	h := w.s.Hosts[id]
	h.Facts.Owner = &fleet.Owner{State: s, Present: s.There(), Since: w.now}
	w.s.Hosts[id] = h
}

// copies answers what begins a move, until a copy is under way.
func (w *world) copies() {
	w.t.Helper()
	for i := 0; i < len(w.wire); i++ {
		if w.wire[i].Verb == fleet.Receive {
			w.answer(i)
			i = -1
		}
	}
}

// An owner who stays gets the host, and it is a host again when they go.
func TestOwnerStays(t *testing.T) {
	w := spread(t, 2, "host1")
	for _, s := range []fleet.OwnerState{fleet.OwnerAbsent, fleet.OwnerReturning, fleet.OwnerAbsent} {
		w.owner("host1", s)
		w.tick(time.Minute)
	}
	if len(w.s.Moves) != 0 {
		t.Fatalf("an owner who only looked in: %+v", w.s.Moves)
	}
	w.owner("host1", fleet.OwnerPresent)
	w.tick(time.Second)
	v := w.s.Moves["m1"]
	if h := w.s.Hosts["host1"]; h.State != fleet.HostDraining || !h.ForOwner || len(v.Migrations) != 2 || v.Why != "the owner of host1 is there" {
		t.Fatalf("%+v %+v", h, w.s.Moves)
	}
	w.settle()
	if len(w.guests["host1"]) != 0 {
		t.Errorf("still there: %v", w.guests["host1"])
	}
	if _, err := w.ask(fleet.Request{Verb: fleet.Undrain, Host: "host1"}); err == nil || !strings.Contains(err.Error(), "its owner is there") {
		t.Errorf("undrain against the owner: %v", err)
	}
	to := fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host1"}
	for _, s := range []fleet.OwnerState{fleet.OwnerPresent, fleet.OwnerLeaving} {
		w.owner("host1", s)
		w.tick(time.Second)
		if _, err := w.ask(to); err == nil || !strings.Contains(err.Error(), "has its owner there") {
			t.Errorf("a guest to a host whose owner is %s: %v", s, err)
		}
	}
	w.owner("host1", fleet.OwnerAbsent)
	w.tick(time.Second)
	if h := w.s.Hosts["host1"]; h.State != fleet.HostUp || h.ForOwner {
		t.Errorf("the owner has gone: %+v", h)
	}
	w.must(to)
	w.settle()
	if w.s.Guests["j1g0"].Home != "host1" {
		t.Errorf("it did not come back: %+v", w.s.Guests["j1g0"])
	}
}

// An owner who goes while guests are copied keeps them; what switches goes on.
func TestOwnerGoesMeanwhile(t *testing.T) {
	w := spread(t, 2, "host1")
	w.owner("host1", fleet.OwnerPresent)
	w.tick(time.Second)
	w.copies()
	w.owner("host1", fleet.OwnerLeaving)
	w.tick(time.Second)
	if v := w.s.Moves["m1"]; !v.Ended.IsZero() || w.member("j1g0").Phase == fleet.Withdrawing {
		t.Fatalf("a move is called off before the owner has gone: %+v", w.member("j1g0"))
	}
	w.owner("host1", fleet.OwnerAbsent)
	w.tick(time.Second)
	w.settle()
	if m := w.member("j1g0"); m.Phase != fleet.Aborted || m.Cause != "host1 no longer drains" || len(w.guests["host1"]) != 2 {
		t.Errorf("%+v %v", m, w.guests)
	}
	w.tick(time.Hour)
	if len(w.s.Moves) != 1 {
		t.Errorf("it moves again: %+v", w.s.Moves)
	}
}

// What is on its way to a host whose owner comes turns round, unless it has
// begun to switch.
func TestOwnerOfATargetComes(t *testing.T) {
	w := spread(t, 1, "host1")
	w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host2"})
	w.copies()
	w.owner("host2", fleet.OwnerReturning)
	w.tick(time.Second)
	w.settle()
	if m := w.member("j1g0"); m.Phase != fleet.Aborted || m.Cause != "the owner of host2 has come" || w.s.Guests["j1g0"].Home != "host1" {
		t.Errorf("%+v", m)
	}
	w.owner("host2", fleet.OwnerAbsent)
	w.tick(time.Minute)
	w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host2"})
	second := func() fleet.Migration { return w.s.Migrations["m2.j1g0"] }
	for i := 0; second().Phase != fleet.Repointing && i < 20; i++ {
		for i := range w.wire {
			if v := w.wire[i].Verb; v != fleet.Hold && v != fleet.Run && w.answer(i) {
				break
			}
		}
	}
	w.owner("host2", fleet.OwnerPresent)
	w.tick(time.Second)
	w.settle()
	if m := second(); m.Phase != fleet.Finished {
		t.Errorf("what had switched did not arrive: %+v", m)
	}
}

// Owners who agreed to less, and drains that people asked for.
func TestOwnerAgreedToOtherwise(t *testing.T) {
	w := spread(t, 1, "host1")
	for _, vacate := range []fleet.Vacate{fleet.Stay, fleet.Suspend} {
		w.must(fleet.Request{Verb: fleet.SetPolicy, Host: "host1", Policy: &fleet.OwnerPolicy{Owned: true, Vacate: vacate}})
		w.owner("host1", fleet.OwnerPresent)
		w.tick(time.Minute)
		if len(w.s.Moves) != 0 || w.s.Hosts["host1"].State != fleet.HostUp {
			t.Fatalf("%s: %+v", vacate, w.s.Moves)
		}
	}
	w.must(fleet.Request{Verb: fleet.Claim, Host: "host1"})
	if h := w.s.Hosts["host1"]; !h.Policy.Claimed || h.Policy.Vacate != fleet.Suspend {
		t.Errorf("claimed: %+v", h.Policy)
	}
	w.must(fleet.Request{Verb: fleet.Release, Host: "host1"})
	w.must(fleet.Request{Verb: fleet.SetPolicy, Host: "host1", Policy: &fleet.OwnerPolicy{Owned: true}})
	w.tick(time.Second)
	if len(w.s.Moves) != 1 || !w.s.Hosts["host1"].ForOwner {
		t.Fatalf("agreed to leave: %+v", w.s.Moves)
	}
	// A person's drain outlives the owner's stay.
	w.must(fleet.Request{Verb: fleet.Drain, Host: "host1"})
	w.owner("host1", fleet.OwnerAbsent)
	w.settle()
	w.tick(time.Minute)
	if h := w.s.Hosts["host1"]; h.State != fleet.HostDraining || h.ForOwner || len(w.guests["host1"]) != 0 {
		t.Errorf("%+v %v", h, w.guests)
	}
	var no *Refusal
	for _, r := range []fleet.Request{
		{Verb: fleet.SetPolicy, Host: "host1"}, {Verb: fleet.Claim, Host: "none"},
		{Verb: fleet.SetPolicy, Host: "host1", Policy: &fleet.OwnerPolicy{Cap: 2}},
	} {
		if _, err := w.ask(r); !errors.As(err, &no) {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if _, err := w.p.Step(w.s, fleet.Request{Verb: fleet.Claim, Host: "host1", By: fleet.Caller{UID: 5}}); !errors.As(err, &no) {
		t.Errorf("anybody may claim a host: %v", err)
	}
}

// All owners back at once: nobody has anywhere to go, nothing is lost, and the
// first to go gets the guests.
func TestAllOwnersAtOnce(t *testing.T) {
	w := spread(t, 2, "host1")
	for id := range w.s.Hosts {
		w.owner(id, fleet.OwnerPresent)
	}
	w.tick(time.Minute)
	w.settle()
	if len(w.s.Moves) != 0 || len(w.guests["host1"]) != 2 {
		t.Fatalf("%+v", w.s.Moves)
	}
	w.owner("host2", fleet.OwnerAbsent)
	w.tick(2 * time.Second)
	w.settle()
	if len(w.guests["host2"]) != 2 || len(w.guests["host1"]) != 0 {
		t.Errorf("%v", w.guests)
	}
}
