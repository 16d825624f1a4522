package planner

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

const socket = "perl (process 7 in the container) uses a socket that cannot move: let it close it"

// hinder makes a guest's host report an obstacle to moving it, until further notice.
func (w *world) hinder(id fleet.GuestID, what ...string) {
	w.t.Helper()
	facts := w.s.Hosts[w.s.Guests[id].Home].Facts
	f := facts.Guests[id]
	f.Obstacles = what
	facts.Guests[id] = f
}

// A guest with an obstacle is not moved. A request is refused with the obstacle. A drain
// moves the other guests, and this one when the obstacle is gone.
func TestHinderedGuestStays(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	r := submission(2)
	r.Spec.On = []fleet.HostID{"host1"}
	w.must(r)
	w.answerAll()
	w.hinder("j1g0", socket, "something else")
	want := "guest j1g0 cannot move: " + socket + "; something else"
	for _, r := range []fleet.Request{
		{Verb: fleet.Migrate, Guest: "j1g0"}, {Verb: fleet.Migrate, Job: "j1"}, {Verb: fleet.Migrate, Guest: "j1g0", To: "host2"},
	} {
		if _, err := w.ask(r); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		if len(w.s.Moves) > 0 {
			t.Fatal("a move was begun")
		}
	}
	said, err := w.p.Explain(w.s, Subject{Guest: "j1g0"})
	if err != nil || !slices.Contains(said, "It could not leave: "+socket+"; something else.") {
		t.Errorf("Explain says %q, %v", said, err)
	}
	d := w.must(fleet.Request{Verb: fleet.Drain, Host: "host1"})
	if all := strings.Join(d.Notes, "\n"); !strings.Contains(all, "j1g0 stays for now: "+socket) {
		t.Errorf("the drain says %q", all)
	}
	w.answerAll()
	if at0, at1 := w.s.Guests["j1g0"].Home, w.s.Guests["j1g1"].Home; at0 != "host1" || at1 != "host2" {
		t.Errorf("the drain left j1g0 on %s and j1g1 on %s", at0, at1)
	}
	w.hinder("j1g0")
	w.tick(2 * time.Second)
	w.answerAll()
	if at := w.s.Guests["j1g0"].Home; at != "host2" {
		t.Errorf("nothing keeps j1g0 any more, and it is on %s", at)
	}
}
