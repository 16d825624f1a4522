package controller

import (
	"testing"

	"pagurus/decide/desired"
	"pagurus/fleet"
	"pagurus/serve/wire"
)

// asks has a host say that a guest's programs ask for something.
func (a *agent) asks(g fleet.GuestID, wishes ...fleet.Wish) {
	a.r.t.Helper()
	f := a.r.facts(a.id)
	f.Guests = map[fleet.GuestID]fleet.GuestFacts{g: {Run: fleet.Running, Said: &fleet.Said{Version: 1, Wishes: wishes}}}
	if err := a.session.Send(a.r.ctx, wire.Up{Facts: &f}); err != nil {
		a.r.t.Fatal(err)
	}
}

// answered waits for the answer to a wish.
func (a *agent) answered(id uint64) (got fleet.WishAnswer) {
	a.r.t.Helper()
	a.hears("an answer to a program", func(d wire.Down) bool {
		if d.Answers == nil {
			return false
		}
		for _, a := range d.Answers.Answers {
			if a.ID == id {
				got = a
				return true
			}
		}
		return false
	})
	return got
}

// A program has its own guest moved, by the host where that is and by no other, and once, however often it is told.
func TestProgramsSteerTheirOwnJobs(t *testing.T) {
	r := newRig(t)
	home, other := r.attach("host1"), r.attach("host2")
	g := r.on("host1")
	away := fleet.Wish{ID: 1, Verb: fleet.WishMove, Aim: fleet.AimAway}
	other.asks(g.ID, away) // it is not there
	home.asks(g.ID, fleet.Wish{ID: 2, Verb: fleet.WishWhere}, fleet.Wish{ID: 3, Verb: "fly"})
	if a := home.answered(2); a.Code != fleet.WishDone || len(a.Rows) == 0 {
		t.Errorf("%+v", a)
	}
	if n := len(r.now().Moves); n != 0 {
		t.Fatalf("a host had a guest of another moved: %+v", r.now().Moves)
	}
	home.asks(g.ID, away)
	home.asks(g.ID, away)
	if a := home.answered(1); a.Code != fleet.WishDone || a.Text != "move m1" {
		t.Errorf("%+v", a)
	}
	moved := r.until("the guest to have moved", func(s fleet.Snapshot) bool {
		return s.Guests[g.ID].Home == "host2" && s.Guests[g.ID].State == fleet.GuestRunning
	})
	if len(moved.Moves) != 1 {
		t.Errorf("%+v", moved.Moves)
	}
	other.asks(g.ID, away) // it was not told yet
	if a := other.answered(1); a.Text != "move m1" {
		t.Errorf("%+v", a)
	}
}

// One user's programs, however many ask, leave others a turn.
func TestOneUsersWishesLeaveOthersATurn(t *testing.T) {
	w := wishes{}
	for range 2 {
		for i, uid := range []uint32{1, 1, 1, 2, 2, 2, 3} {
			if got, want := w.enter(uid), i < 2 || i == 3 || i == 4; got != want {
				t.Errorf("%d. of user %d: %t", i, uid, got)
			}
		}
		for _, uid := range []uint32{1, 2, 1, 2} {
			w.leave(uid)
		}
		if w.busy != 0 || len(w.users) != 0 {
			t.Fatalf("%+v", w)
		}
	}
}

// What is waited for, however often it is asked again, takes no turn from anyone.
func TestWaitingForGuestsTakesNoTurn(t *testing.T) {
	r := newRig(t)
	home := r.attach("host1")
	a, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.Submit, Spec: &fleet.JobSpec{
		Args: []string{"./a.out"}, Dir: "/home/u", Ranks: 1, Guests: 1, Grow: 1, Image: "openmpi", Machine: "machine",
		Need: fleet.Resources{CPUs: 1, MemoryBytes: 5 << 30}, // of 8
	}})
	if err != nil {
		t.Fatal(err)
	}
	g := r.until("a job to run", running(a.Job)).Guests[desired.GuestID(a.Job, 0)]
	grow := fleet.Wish{ID: 1, Verb: fleet.WishGrow, Count: 1, Within: fleet.MostGrowthWait}
	home.asks(g.ID, grow)
	r.until("the job to wait for room", func(s fleet.Snapshot) bool {
		waits, _ := s.Jobs[a.Job].Growing()
		return waits.State == fleet.GrowthWaiting
	})
	for range mostConsidered {
		home.asks(g.ID, grow)
	}
	home.asks(g.ID, grow, fleet.Wish{ID: 2, Verb: fleet.WishCost})
	if a := home.answered(2); a.ID != 2 {
		t.Errorf("%+v", a)
	}
}
