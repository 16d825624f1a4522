package planner

import (
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// says has a guest's programs mark moments, as of now.
func (w *world) says(g fleet.GuestID, m fleet.Marks) {
	w.hear()
	h := w.s.Hosts[w.s.Guests[g].Home]
	f := h.Facts.Guests[g]
	f.Said = &fleet.Said{Version: 1, Marks: m.By(w.now), Remark: &fleet.Remark{Level: "ill", Text: "a disk is slow"}}
	h.Facts.Guests[g] = f
}

func TestAMoveWaitsForAMark(t *testing.T) {
	w := spread(t, 1, "host1")
	w.says("j1g0", fleet.Marks{NotFor: 10 * time.Second})
	w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host2"})
	w.answerAll()
	if p := w.member("j1g0").Phase; p != fleet.Waiting {
		t.Fatalf("it is %s while moves should not begin", p)
	}
	if said := w.explain(Subject{Guest: "j1g0"}); !strings.Contains(said, "It waits for a mark, for 10s at most: its program said that moves should not begin now.") || !strings.Contains(said, "Its program says (ill, 0s ago): a disk is slow.") {
		t.Error(said)
	}
	w.turn(5)
	if p := w.member("j1g0").Phase; p != fleet.Waiting {
		t.Fatalf("it is %s while moves should not begin", p)
	}
	w.says("j1g0", fleet.Marks{Cheaps: 1})
	w.observe(fleet.Observation{At: w.now, Marked: "j1g0"})
	w.answerAll()
	m := w.member("j1g0")
	if m.Phase != fleet.Finished || m.Marked != "after 5s, at a moment that its program marked as cheap" {
		t.Errorf("it is %s, %q", m.Phase, m.Marked)
	}
}

func TestAMoveDoesNotWaitForMarksForEver(t *testing.T) {
	w := spread(t, 1, "host1")
	w.says("j1g0", fleet.Marks{NotFor: time.Minute})
	w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host2"})
	w.answerAll()
	w.turn(29)
	if p := w.member("j1g0").Phase; p != fleet.Waiting {
		t.Fatalf("it is %s", p)
	}
	w.turn(2)
	if m := w.member("j1g0"); m.Phase != fleet.Finished || !strings.Contains(m.Marked, "no cheap moment was marked until it had to begin") {
		t.Errorf("it is %s, %q", m.Phase, m.Marked)
	}
}

// Nor does it when the controller's clock is set back meanwhile.
func TestAClockThatIsSetBackHoldsUpNoMove(t *testing.T) {
	w := spread(t, 1, "host1")
	w.says("j1g0", fleet.Marks{NotFor: time.Minute})
	w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host2"})
	w.answerAll()
	w.now = w.now.Add(-10 * time.Hour)
	w.s.LedSince = w.now // as the controller does when it notices
	for range 40 {
		w.says("j1g0", fleet.Marks{NotFor: time.Minute})
		w.turn(1)
	}
	if m := w.member("j1g0"); m.Phase != fleet.Finished {
		t.Errorf("it is %s", m.Phase)
	}
}

func TestWhatLeavesAHostThatGoesAwayWaitsForNoMark(t *testing.T) {
	w := spread(t, 1, "host1")
	w.says("j1g0", fleet.Marks{NotFor: time.Minute})
	waits := func() bool {
		return waitForMark(w.s, fleet.Move{}, []fleet.Migration{{Guest: "j1g0", From: "host1", Phase: fleet.Waiting, Since: w.now}}, w.now).Holds
	}
	was := w.s.Hosts["host1"]
	if !waits() {
		t.Error("it does not wait")
	}
	for _, change := range []func(*fleet.Host){
		func(h *fleet.Host) { h.EmptyBy = w.now.Add(time.Minute) },
		func(h *fleet.Host) { h.State = fleet.HostDraining },
		func(h *fleet.Host) { h.Facts.Owner = &fleet.Owner{Present: true} },
	} {
		h := was
		change(&h)
		w.s.Hosts["host1"] = h
		if waits() {
			t.Errorf("it waits on %+v", h)
		}
	}
}

func TestWhatBecomesOfWishes(t *testing.T) {
	w := spread(t, 2, "host1", "host2")
	w.hear()
	consider := func(wish fleet.Wish) (fleet.WishAnswer, *fleet.Request) {
		wish.ID = 7
		return w.p.Consider(w.s, "j1g0", wish)
	}
	if a, r := consider(fleet.Wish{Verb: fleet.WishWhere}); r != nil || a.ID != 7 || a.Code != fleet.WishDone || len(a.Rows) == 0 {
		t.Errorf("%+v, %+v", a, r)
	}
	if a, r := consider(fleet.Wish{Verb: fleet.WishCost}); r != nil || a.Code != fleet.WishDone || !strings.Contains(strings.Join(a.Rows, "\n"), "seconds ") {
		t.Errorf("%+v, %+v", a, r)
	}
	if a, r := consider(fleet.Wish{Verb: fleet.WishMove, Aim: fleet.AimBetter}); r != nil || a.Code != fleet.WishRefused {
		t.Errorf("%+v, %+v", a, r) // nothing is busy
	}
	if a, r := consider(fleet.Wish{Verb: fleet.WishMove, Aim: "up"}); r != nil || a.Code != fleet.WishInvalid {
		t.Errorf("%+v, %+v", a, r)
	}
	if a, r := consider(fleet.Wish{Verb: fleet.WishMove, Aim: fleet.AimRank}); r != nil || a.Code != fleet.WishDone || !strings.Contains(a.Text, "already") {
		t.Errorf("%+v, %+v", a, r)
	}
	a, r := consider(fleet.Wish{Verb: fleet.WishMove, Aim: fleet.AimAway})
	if r == nil {
		t.Fatalf("%+v", a)
	}
	step := func() fleet.Answer {
		d, err := w.step(*r)
		if err != nil {
			t.Fatal(err)
		}
		return d.Answer
	}
	answer := step()
	if got := Granted(fleet.Wish{ID: 7}, answer, nil); got.ID != 7 || got.Text != "move m1" {
		t.Errorf("%+v", got)
	}
	if again := step(); len(again.Moves) != 1 || again.Moves[0] != answer.Moves[0] {
		t.Errorf("asked again it is %+v", again)
	}
	if why := w.s.Moves["m1"].Why; why != "asked for by its own program, in guest j1g0" {
		t.Error(why)
	}
	r.Job, r.Guests, r.ID = "j9", nil, "x"
	if _, err := w.step(*r); err == nil {
		t.Error("a program asks for another's job")
	}
}
