package planner

import (
	"strings"
	"testing"
	"time"

	"pagurus/decide/state"
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

// A guest whose programs mark moments is copied, and then switches at one; its scratch memory is given back before both.
func TestASwitchWaitsForAMark(t *testing.T) {
	w := spread(t, 1, "host1")
	w.says("j1g0", fleet.Marks{Cheaps: 1, Scratch: 100 << 20, Held: 100 << 20})
	w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host2"})
	w.answerAll()
	m := w.member("j1g0")
	if awaited := Awaited(w.s, w.s.Guests["j1g0"]); m.Phase != fleet.Waiting || awaited.For != string(m.ID)+" copy" {
		t.Fatalf("it is %s, and %+v is awaited", m.Phase, awaited)
	}
	given := func(cheaps uint64) {
		w.says("j1g0", fleet.Marks{Cheaps: cheaps, Scratch: 100 << 20, For: Awaited(w.s, w.s.Guests["j1g0"]).For})
		w.observe(fleet.Observation{At: w.now, Marked: "j1g0"})
		w.answerAll()
	}
	given(2)
	m = w.member("j1g0")
	if m.Phase != fleet.Ready || !m.AtMark || m.Marked != "after 0s, at a moment that its program marked as cheap, without 100 MiB of scratch memory" {
		t.Fatalf("it is %s, %q", m.Phase, m.Marked)
	}
	if l := copyLimits(state.ViewOf(w.s), m); !l.AwaitGang {
		t.Error("QEMU would suspend it by itself")
	}
	if said := w.explain(Subject{Guest: "j1g0"}); !strings.Contains(said, "It is copied, and its switch waits for a mark, for 5s at most: its program marks cheap moments, and the next is awaited.") {
		t.Error(said)
	}
	w.turn(3)
	given(3)
	if m = w.member("j1g0"); m.Phase != fleet.Finished || m.SwitchMarked != "after 3s, at a moment that its program marked as cheap, without 100 MiB of scratch memory" {
		t.Errorf("it is %s, %q", m.Phase, m.SwitchMarked)
	}
	if awaited := Awaited(w.s, w.s.Guests["j1g0"]); awaited.For != "" {
		t.Errorf("%+v is awaited of a guest that does not move", awaited)
	}
}

// awaitsMark is a world whose guest is copied, and waits for a mark before it switches.
func awaitsMark(t *testing.T) *world {
	t.Helper()
	w := spread(t, 1, "host1")
	w.says("j1g0", fleet.Marks{Cheaps: 1})
	w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host2"})
	w.turn(1)
	w.says("j1g0", fleet.Marks{Cheaps: 1, CheapAgo: time.Second})
	w.turn(1)
	if p := w.member("j1g0").Phase; p != fleet.Ready {
		t.Fatalf("it is %s", p)
	}
	return w
}

func TestASwitchDoesNotWaitForMarksForEver(t *testing.T) {
	for _, drain := range []bool{false, true} {
		w := awaitsMark(t)
		if drain { // it leaves at once
			w.must(fleet.Request{Verb: fleet.Drain, Host: "host1"})
			w.turn(1)
			if m := w.member("j1g0"); m.Phase != fleet.Finished {
				t.Errorf("it is %s, %q", m.Phase, m.SwitchMarked)
			}
			continue
		}
		w.turn(3)
		if p := w.member("j1g0").Phase; p != fleet.Ready {
			t.Fatalf("it is %s", p)
		}
		w.turn(3)
		if m := w.member("j1g0"); m.Phase != fleet.Finished || !strings.Contains(m.SwitchMarked, "no cheap moment was marked until it had to switch") {
			t.Errorf("it is %s, %q", m.Phase, m.SwitchMarked)
		}
	}
}

// When nothing of a guest is left to copy, its hypervisor suspends it, and so it marks nothing.
func TestASwitchOfASuspendedGuestWaitsForNoMark(t *testing.T) {
	for _, owner := range []bool{false, true} {
		w := awaitsMark(t)
		w.guests["host1"]["j1g0"] = fleet.Suspended
		f := w.s.Hosts["host1"].Facts.Guests["j1g0"]
		f.Suspended = owner
		w.s.Hosts["host1"].Facts.Guests["j1g0"] = f
		w.observe(fleet.Observation{At: w.now, Marked: "j1g0"})
		if owner {
			if m := w.member("j1g0"); m.Phase != fleet.Ready {
				t.Errorf("it is %s although its owner's return suspended it", m.Phase)
			}
			continue
		}
		w.answerAll()
		if m := w.member("j1g0"); m.Phase != fleet.Finished || m.SwitchMarked != "after 1s, nothing was left to copy, which suspended it" {
			t.Errorf("it is %s, %q", m.Phase, m.SwitchMarked)
		}
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
	w.turn(2 + 6) // and for its switch
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

// The price of a move that waits for a mark is that from a marked moment on, and the other one is told beside it.
func TestThePriceFallsAtMarks(t *testing.T) {
	w := spread(t, 1, "host1")
	p := fleet.Profile{
		At: w.now, MemoryBytes: 256 << 20, FilledBytes: 200 << 20,
		Changed: []fleet.Changed{{Within: 50 * time.Millisecond, Bytes: 4 << 20}, {Within: time.Second, Bytes: 90 << 20}, {Within: 3 * time.Second, Bytes: 90 << 20}},
		AtMark:  []fleet.Changed{{Within: 50 * time.Millisecond, Bytes: 64 << 10}, {Within: time.Second, Bytes: 1 << 20}, {Within: 3 * time.Second, Bytes: 90 << 20}},
	}
	ask := fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host2", By: fleet.Caller{Admin: true}}
	foresee := func() fleet.Forecast {
		t.Helper()
		f, err := w.p.Foresee(w.s, ask)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	w.profiled(p)
	before := foresee()
	if before.Unmarked != nil || before.Migrations[0].Prediction.AtMark {
		t.Errorf("nothing marks, and %+v", before)
	}
	w.says("j1g0", fleet.Marks{Cheaps: 1, Scratch: 100 << 20, Held: 100 << 20})
	f := foresee()
	if f.Unmarked == nil || f.Unmarked.Bytes != before.Bytes || f.Unmarked.Total != before.Total {
		t.Fatalf("at other moments %+v, and %+v where nothing is marked", f.Unmarked, before)
	}
	if m := f.Migrations[0].Prediction; !m.AtMark || f.Bytes.Value >= before.Bytes.Value-100<<20 || f.Total.Value >= before.Total.Value || len(m.Profile.AtMark) == 0 || m.Profile.Scratch != 100<<20 {
		t.Errorf("at a mark %+v, else %+v", f, before)
	}
	a, _ := w.p.Consider(w.s, "j1g0", fleet.Wish{ID: 7, Verb: fleet.WishCost})
	if rows := strings.Join(a.Rows, "\n"); !strings.Contains(rows, "\nmark-bytes ") || !strings.HasPrefix(rows, "seconds ") {
		t.Errorf("a program is told %q", rows)
	}
	if said := w.explain(Subject{Guest: "j1g0"}); !strings.Contains(said, "Within 50ms of such a moment it changes 0 MiB, and 4 MiB at others.") || !strings.Contains(said, "It gives back up to 100 MiB of scratch memory") {
		t.Error(said)
	}
	h := w.s.Hosts["host1"]
	h.Facts.Owner = &fleet.Owner{Present: true}
	w.s.Hosts["host1"] = h
	if f := foresee(); f.Unmarked != nil {
		t.Errorf("it leaves an owner's host, and %+v", f.Unmarked)
	}
}
