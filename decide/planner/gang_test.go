package planner

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// spread makes a world with a running job on the given hosts, and three more hosts.
func spread(t checker, guests int, on ...fleet.HostID) *world {
	w := newWorld(t, "host1", "host2", "host3", "host4")
	r := submission(guests)
	r.Spec.On = on
	w.must(r)
	w.answerAll()
	return w
}

// member returns the migration of a guest in the first move.
func (w *world) member(g fleet.GuestID) fleet.Migration {
	return w.s.Migrations[fleet.MigrationID("m1."+string(g))]
}

// answerVerb answers the guest's first order of that kind.
func (w *world) answerVerb(v fleet.Verb, g fleet.GuestID) {
	w.t.Helper()
	i := slices.IndexFunc(w.wire, func(o fleet.Order) bool { return o.Verb == v && o.Guest == g })
	if i < 0 {
		w.t.Fatalf("%s of %s is not on the wire: %v", v, g, w.wire)
	}
	w.answer(i)
}

func TestGangSwitchesTogether(t *testing.T) {
	w := spread(t, 4, "host1", "host2")
	r := fleet.Request{ID: "r1", Verb: fleet.Migrate, Guests: []fleet.GuestID{"j1g0", "j1g1", "j1g2", "j1g3", "j1g1"}, To: "host3"}
	a := w.must(r)
	if again := w.must(r); !reflect.DeepEqual(a, again) || len(a.Moves) != 1 {
		t.Fatalf("%+v, again %+v", a, again)
	}
	for _, g := range []fleet.GuestID{"j1g0", "j1g1", "j1g2"} {
		w.answerVerb(fleet.Receive, g)
		if p := w.member(g).Phase; p != fleet.Waiting {
			t.Errorf("%s is %s while a target is being prepared", g, p)
		}
	}
	w.answerVerb(fleet.Receive, "j1g3")
	for _, g := range []fleet.GuestID{"j1g0", "j1g1", "j1g2"} {
		w.answerVerb(fleet.Copy, g)
		if m := w.member(g); m.Phase != fleet.Ready || w.s.Guests[g].Home == "host3" {
			t.Errorf("%s is %s", g, m.Phase)
		}
	}
	w.answerVerb(fleet.Copy, "j1g3")
	var at time.Time
	for _, g := range w.s.Guests {
		m := w.member(g.ID)
		i := slices.IndexFunc(m.Entered, func(e fleet.Entered) bool { return e.Phase == fleet.Switching })
		if m.Phase != fleet.Switching || g.Home != "host3" || g.Gen != 2 || i < 0 {
			t.Fatalf("%s: %+v", g.ID, m)
		}
		if at.IsZero() {
			at = m.Entered[i].At
		}
		if !m.Entered[i].At.Equal(at) {
			t.Error("they did not switch in one change")
		}
	}
	w.answerAll()
	for _, g := range w.s.Guests {
		if g.Home != "host3" || g.State != fleet.GuestRunning {
			t.Errorf("guest: %+v", g)
		}
	}
}

// A guest that is killed while it waits for its gang ends its job as soon as the gang
// switches: its host says for certain that it has not switched. This takes no time and no
// further order.
func TestGangMemberThatDiesWhileItWaits(t *testing.T) {
	w := spread(t, 2, "host1", "host2")
	w.must(fleet.Request{Verb: fleet.Migrate, Job: "j1", To: "host3"})
	w.answerVerb(fleet.Receive, "j1g0")
	w.answerVerb(fleet.Receive, "j1g1")
	w.answerVerb(fleet.Copy, "j1g0")
	delete(w.guests[w.s.Guests["j1g0"].Home], "j1g0")
	w.answerVerb(fleet.Copy, "j1g1")
	if p := w.member("j1g0").Phase; p != fleet.Switching {
		t.Fatalf("it is %s", p)
	}
	w.minute() // its target is asked whether it has it
	j := w.s.Jobs["j1"]
	if j.State != fleet.JobEnded || j.Result != fleet.JobFailed || !strings.Contains(j.Cause, "j1g0") {
		t.Errorf("job: %+v", j)
	}
	if g := w.s.Guests["j1g0"]; g.State != fleet.GuestLost || !strings.Contains(g.Cause, "not here") {
		t.Errorf("guest: %+v", g)
	}
	if m := w.member("j1g1"); m.Phase != fleet.Finished {
		t.Errorf("the other: %+v", m)
	}
	for host, guests := range w.guests {
		if len(guests) > 0 {
			t.Errorf("%s still has %v", host, guests)
		}
	}
}

// Guests already there stay, with a note; the others move together or not at all.
func TestGangIsAllOrNone(t *testing.T) {
	w := spread(t, 3, "host1", "host2", "host3")
	a := w.must(fleet.Request{Verb: fleet.Migrate, Job: "j1", To: "host3"})
	if len(w.s.Moves["m1"].Migrations) != 2 || !reflect.DeepEqual(a.Notes, []string{"guest j1g2 is already on host3 and stays there"}) {
		t.Errorf("%+v %+v", a, w.s.Moves)
	}
	w = spread(t, 6, "host1", "host2", "host3")
	_, err := w.ask(fleet.Request{Verb: fleet.Migrate, Job: "j1", To: "host3"})
	if err == nil || !strings.Contains(err.Error(), "host3 has no room for all 4 guests: guest j1g") || len(w.s.Moves) != 0 {
		t.Errorf("%v %+v", err, w.s.Moves)
	}
}

func TestGangRefuses(t *testing.T) {
	for want, r := range map[string]fleet.Request{
		"no guest is named to move; `pagurus guest ls` lists them":                                         {},
		"there is no job j9; `pagurus job ls` lists them":                                                  {Job: "j9"},
		"both guests and job j1 are named; name guests, or a job to move all of its guests":                {Job: "j1", Guest: "j1g0"},
		"there is no guest j1g9; `pagurus guest ls` lists them":                                            {Guests: []fleet.GuestID{"j1g0", "j1g9"}},
		"there is no host mars; `pagurus host ls` lists them":                                              {Job: "j1", To: "mars"},
		"all 3 guests are on host1 already; name another host, or none to let Pagurus choose":              {Guests: []fleet.GuestID{"j1g0", "j1g2", "j1g4"}, To: "host1"},
		"guest j2g0 cannot move: it is moving from":                                                        {Guests: []fleet.GuestID{"j1g0", "j2g0"}},
		"host4 has no room for all 6 guests: guest j1g":                                                    {Job: "j1", To: "host4"},
		"there is room for guest j1g":                                                                      {Job: "j1"},
		"but not for all 6 guests at once; move fewer of them, free a host or add one":                     {Job: "j1"},
		"no guest can be sent at -1 bytes a second; give --bandwidth something like 200M":                  {Job: "j1", Limits: fleet.Limits{BytesPerSecond: -1}},
		"--deadline must be positive, and it is -1s; give something like 30s":                              {Job: "j1", Limits: fleet.Limits{Deadline: -time.Second}},
		"the maximum downtime cannot be -1s; give --max-downtime something like 50ms":                      {Job: "j1", Limits: fleet.Limits{Downtime: -time.Second}},
		"a copy cannot have -1 rounds; leave the number out":                                               {Job: "j1", Limits: fleet.Limits{Rounds: -1}},
		`there is no mode "magic"; use pre-copy, post-copy or stop-and-copy`:                               {Job: "j1", Limits: fleet.Limits{Mode: "magic"}},
		"a guest that is moved by stop-and-copy is suspended for the whole copy; leave --max-downtime out": {Job: "j1", Limits: fleet.Limits{Mode: fleet.StopAndCopy, Downtime: 1}},
		"job j3 is stopping; a job is moved while it runs":                                                 {Job: "j3"},
	} {
		w := spread(t, 6, "host1", "host2") // 3 and 3 of 4
		two := submission(1)
		two.Spec.On = []fleet.HostID{"host3"}
		w.must(two)
		three := submission(1)
		three.Spec.On = []fleet.HostID{"host4"}
		w.must(three)
		w.answerAll()
		w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j2g0", To: "host4"})
		w.must(fleet.Request{Verb: fleet.Cancel, Job: "j3", Grace: atOnce()})
		h := w.s.Hosts["host3"]
		h.State = fleet.HostDraining
		w.s.Hosts["host3"] = h
		r.Verb = fleet.Migrate
		before := len(w.s.Moves)
		if _, err := w.ask(r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		if len(w.s.Moves) != before {
			t.Errorf("%s: something was begun", want)
		}
	}
}

// A guest that finds no room at first is placed first in the next turn.
func TestGangFindsTheRoomThereIs(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	for i, on := range []fleet.HostID{"host1", "host1", "host1", "host2", "host2", "host2"} {
		r := submission(1)
		r.ID, r.Spec.On = fleet.RequestID(fmt.Sprint(i)), []fleet.HostID{on}
		w.must(r)
	}
	w.answerAll()
	// One slot is free on each host: only a swap fits.
	w.must(fleet.Request{Verb: fleet.Migrate, Guests: []fleet.GuestID{"j1g0", "j4g0"}})
	w.answerAll()
	if w.s.Guests["j1g0"].Home != "host2" || w.s.Guests["j4g0"].Home != "host1" {
		t.Errorf("%+v", w.s.Guests)
	}
}

func TestLimitsReachTheCopies(t *testing.T) {
	w := spread(t, 3, "host1", "host2")
	w.must(fleet.Request{Verb: fleet.Migrate, Job: "j1", To: "host3",
		Limits: fleet.Limits{BytesPerSecond: 200 << 20, Downtime: 30 * time.Millisecond, Deadline: time.Minute, AwaitGang: true}})
	for range 3 {
		w.answer(slices.IndexFunc(w.wire, func(o fleet.Order) bool { return o.Verb == fleet.Receive }))
	}
	if l := w.s.Moves["m1"].Limits; l.Deadline != time.Minute || l.AwaitGang {
		t.Errorf("of the move: %+v", l)
	}
	alone := map[fleet.HostID]int64{}
	for _, g := range w.s.Guests {
		alone[w.member(g.ID).From]++
	}
	copies := 0
	for _, o := range Pending(w.s) {
		if o.Verb != fleet.Copy {
			continue
		}
		copies++
		l := Task(w.s, o).Limits
		if want := 200 << 20 / alone[o.Host]; l.BytesPerSecond != want || l.Downtime != 30*time.Millisecond || !l.AwaitGang || l.Rounds == 0 {
			t.Errorf("of a copy from %s: %+v, want %d", o.Host, l, want)
		}
	}
	if copies != 3 {
		t.Errorf("%d copies", copies)
	}
}

// The longest is copied first; a small guest's copy begins when the longest has as much
// left.
func TestSmallGuestsBeginLater(t *testing.T) {
	w := spread(t, 2, "host1")
	h := w.s.Hosts["host1"]
	h.Facts.Guests = map[fleet.GuestID]fleet.GuestFacts{"j1g0": {ResidentBytes: 400 << 20}, "j1g1": {ResidentBytes: 100 << 20}}
	w.s.Hosts["host1"] = h
	w.must(fleet.Request{Verb: fleet.Migrate, Job: "j1"})
	w.answerVerb(fleet.Receive, "j1g0")
	w.answerVerb(fleet.Receive, "j1g1")
	far := func(remaining int64, rounds int) {
		h := w.s.Hosts["host1"]
		h.Facts.Copies = map[fleet.MigrationID]fleet.Progress{"m1.j1g0": {TotalBytes: 512 << 20, RemainingBytes: remaining, Rounds: rounds}}
		w.s.Hosts["host1"] = h
		w.tick(time.Second)
	}
	far(256<<20, 1)
	if a, b := w.member("j1g0").Phase, w.member("j1g1").Phase; a != fleet.Copying || b != fleet.Waiting {
		t.Fatalf("%s, %s", a, b)
	}
	far(128<<20, 1)
	if p := w.member("j1g1").Phase; p != fleet.Copying {
		t.Errorf("%s when a quarter of 400 MiB is left", p)
	}
	w.answerAll()
	if g := w.s.Guests["j1g1"]; g.Home != w.member("j1g1").To {
		t.Errorf("%+v", g)
	}
}

func TestDeadlineDecidesWhoGoes(t *testing.T) {
	w := spread(t, 3, "host1")
	w.must(fleet.Request{Verb: fleet.Migrate, Job: "j1", To: "host3", Limits: fleet.Limits{Deadline: 30 * time.Second}})
	for _, g := range []fleet.GuestID{"j1g0", "j1g1", "j1g2"} {
		w.answerVerb(fleet.Receive, g)
	}
	w.answerVerb(fleet.Copy, "j1g0")
	w.answerVerb(fleet.Copy, "j1g2")
	w.tick(29 * time.Second)
	if p := w.member("j1g0").Phase; p != fleet.Ready {
		t.Fatalf("too early: %s", p)
	}
	w.tick(2 * time.Second)
	w.answerAll()
	for g, home := range map[fleet.GuestID]fleet.HostID{"j1g0": "host3", "j1g1": "host1", "j1g2": "host3"} {
		if got := w.s.Guests[g]; got.Home != home || got.State != fleet.GuestRunning || w.guests[home][g] != fleet.Running {
			t.Errorf("%+v, want it on %s", got, home)
		}
	}
	if m := w.member("j1g1"); m.Phase != fleet.Aborted || m.Cause != "it was not ready within the deadline of 30s, and the others went without it" {
		t.Errorf("%+v", m)
	}
	// A guest that moves alone is cancelled.
	w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g1", Limits: fleet.Limits{Deadline: time.Second}})
	w.answerVerb(fleet.Receive, "j1g1")
	w.tick(2 * time.Second)
	w.answerAll()
	if m := w.s.Migrations["m2.j1g1"]; m.Phase != fleet.Aborted || m.Cause != "it was not ready within the deadline of 1s" {
		t.Errorf("%+v", m)
	}
}

// A move can be cancelled at any moment before its gang switches, and both hosts are
// clean; later it cannot.
func TestCallOffAtEveryMoment(t *testing.T) {
	for guests := 1; guests <= 3; guests++ {
		steps := 0
		for over := false; !over; steps++ {
			w := spread(t, guests, "host1", "host2")
			w.must(fleet.Request{Verb: fleet.Migrate, Job: "j1", To: "host3"})
			for range steps {
				w.answer(slices.IndexFunc(w.wire, func(o fleet.Order) bool { return o.Migration != "" }))
			}
			committed := w.s.Guests["j1g0"].Gen > 1
			over = !w.s.Moves["m1"].Ended.IsZero()
			_, err := w.ask(fleet.Request{Verb: fleet.CancelMove, Move: "m1"})
			if committed != (err != nil) {
				t.Fatalf("%d guests after %d answers: %v", guests, steps, err)
			}
			if want := "can no longer be cancelled"; committed && !strings.Contains(err.Error(), want) {
				t.Errorf("%v", err)
			}
			if _, again := w.ask(fleet.Request{Verb: fleet.CancelMove, Move: "m1"}); (again != nil) != committed {
				t.Errorf("again: %v", again)
			}
			w.answerAll()
			if _, again := w.ask(fleet.Request{Verb: fleet.CancelMove, Move: "m1"}); (again != nil) != committed {
				t.Errorf("once it is over: %v", again)
			}
			for _, g := range w.s.Guests {
				if (g.Home == "host3") != committed || g.State != fleet.GuestRunning || w.guests[g.Home][g.ID] != fleet.Running {
					t.Errorf("%d guests after %d answers: %+v", guests, steps, g)
				}
			}
			if n := len(w.guests["host1"]) + len(w.guests["host2"]) + len(w.guests["host3"]); n != guests {
				t.Errorf("%d guests after %d answers: %v", guests, steps, w.guests)
			}
		}
		if want := 5 * guests; steps != want+1 {
			t.Errorf("%d guests: %d moments", guests, steps)
		}
	}
	w := spread(t, 1, "host1")
	if _, err := w.ask(fleet.Request{Verb: fleet.CancelMove, Move: "m9"}); err == nil || err.Error() != "there is no move m9; `pagurus move ls` lists them" {
		t.Errorf("%v", err)
	}
}

func TestDrainMovesAJobTogether(t *testing.T) {
	w := spread(t, 3, "host1")
	other := submission(1)
	other.Spec.On = []fleet.HostID{"host1"}
	w.must(other)
	w.answerAll()
	a := w.must(fleet.Request{Verb: fleet.Drain, Host: "host1"})
	if len(a.Moves) != 1 || len(w.s.Moves["m1"].Migrations) != 3 || !reflect.DeepEqual(a.Notes, []string{"1 more guest follows, the guests of one job at a time"}) {
		t.Fatalf("%+v: %+v", a, w.s.Moves)
	}
	if again := w.must(fleet.Request{Verb: fleet.Drain, Host: "host1"}); len(again.Moves) != 0 {
		t.Errorf("draining twice began %v", again.Moves)
	}
	w.answerAll()
	for _, g := range w.s.Guests {
		if g.Home == "host1" || g.State != fleet.GuestRunning {
			t.Errorf("guest: %+v", g)
		}
	}
	if v := w.s.Moves["m2"]; len(w.s.Moves) != 2 || len(v.Migrations) != 1 || v.Drains != "host1" {
		t.Errorf("%+v", w.s.Moves)
	}
}

// If a job does not fit elsewhere as a whole, the guests that find room move.
func TestDrainMovesWhoFits(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	for i, on := range []fleet.HostID{"host2", "host1"} {
		r := submission([]int{2, 4}[i])
		r.ID, r.Spec.On = fleet.RequestID(fmt.Sprint(i)), []fleet.HostID{on}
		w.must(r)
	}
	w.answerAll()
	a := w.must(fleet.Request{Verb: fleet.Drain, Host: "host1"})
	if len(w.s.Moves["m1"].Migrations) != 2 || len(a.Notes) != 2 || !strings.Contains(a.Notes[0], "stays for now, no host can take it") {
		t.Fatalf("%+v: %+v", a, w.s.Moves)
	}
	w.answerAll()
	if n := len(w.guests["host1"]); n != 2 {
		t.Errorf("%d are still there", n)
	}
}

// After failed gang moves, guests leave one at a time.
func TestDrainGivesUpOnGangs(t *testing.T) {
	w := spread(t, 2, "host1")
	w.must(fleet.Request{Verb: fleet.Drain, Host: "host1"})
	for i := range aloneAfter {
		if v := w.s.Moves[fleet.MoveID(fmt.Sprintf("m%d", i+1))]; len(v.Migrations) != 2 {
			t.Fatalf("%+v", w.s.Moves)
		}
		w.fault(fleet.Receive, "failed")
		w.answerAll()
		w.tick(2 * time.Minute)
	}
	if v := w.s.Moves["m3"]; len(v.Migrations) != 1 {
		t.Fatalf("%+v", v)
	}
	w.answerAll()
	if len(w.guests["host1"]) != 0 {
		t.Errorf("%v", w.guests["host1"])
	}
}

func TestUndrainCallsOff(t *testing.T) {
	w := spread(t, 2, "host1")
	w.must(fleet.Request{Verb: fleet.Drain, Host: "host1"})
	a := w.must(fleet.Request{Verb: fleet.Undrain, Host: "host1"})
	if !reflect.DeepEqual(a.Notes, []string{"move m1 is cancelled"}) {
		t.Errorf("%+v", a)
	}
	if again := w.must(fleet.Request{Verb: fleet.Undrain, Host: "host1"}); len(again.Notes) != 0 {
		t.Errorf("again: %+v", again)
	}
	w.answerAll()
	w.tick(time.Hour)
	if len(w.guests["host1"]) != 2 || len(w.s.Moves) != 1 || w.member("j1g0").Cause != "host1 no longer drains" {
		t.Errorf("%v %+v", w.guests, w.s.Moves)
	}
	// Requested moves and moves that switch go on.
	w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0"})
	w.must(fleet.Request{Verb: fleet.Drain, Host: "host1"})
	if a := w.must(fleet.Request{Verb: fleet.Undrain, Host: "host1"}); len(a.Notes) != 0 {
		t.Errorf("%+v", a)
	}
	w.answerAll()
	w.must(fleet.Request{Verb: fleet.Drain, Host: "host1"})
	w.answerVerb(fleet.Receive, "j1g1")
	w.answerVerb(fleet.Copy, "j1g1")
	if a := w.must(fleet.Request{Verb: fleet.Undrain, Host: "host1"}); !reflect.DeepEqual(a.Notes, []string{"move m3 has begun to switch and goes on"}) {
		t.Errorf("%+v", a)
	}
	w.answerAll()
	if len(w.guests["host1"]) != 0 {
		t.Errorf("%v", w.guests)
	}
}
