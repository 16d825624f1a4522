package planner

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pagurus/decide/desired"
	"pagurus/fleet"
)

// growing is a world with a running job that may grow.
func growing(t *testing.T, guests, more int, hosts ...fleet.HostID) (*world, fleet.JobID) {
	w := newWorld(t, hosts...)
	return w, w.running(guests, func(s *fleet.JobSpec) { s.Grow = more })
}

// grow asks for more guests as the job's program does.
func (w *world) grow(j fleet.JobID, id fleet.RequestID, count int, within time.Duration) error {
	w.t.Helper()
	_, err := w.ask(fleet.Request{Verb: fleet.Grow, ID: id, Job: j, Count: count, Within: within})
	return err
}

// growth is the newest growth of a job.
func (w *world) growth(j fleet.JobID) fleet.Growth {
	all := w.s.Jobs[j].Growths
	if len(all) == 0 {
		return fleet.Growth{}
	}
	return all[len(all)-1]
}

func TestAJobGrows(t *testing.T) {
	w, j := growing(t, 1, 3, "host1", "host2", "host3")
	wish := fleet.Wish{ID: 9, Verb: fleet.WishGrow, Ranks: 2, Within: 30 * time.Second}
	a, r := w.p.Consider(w.s, "j1g0", wish)
	if r == nil || r.Count != 2 || r.Job != j || r.By.Guest != "j1g0" {
		t.Fatalf("%+v, %+v", a, r)
	}
	for range 2 { // however often it is asked
		if _, err := w.step(*r); err != nil {
			t.Fatal(err)
		}
	}
	if _, waits, known := GrowthSaid(w.s, w.s.Guests["j1g0"], wish); !waits || !known || w.growth(j).State != fleet.GrowthStarting {
		t.Errorf("%v, %v, %+v", waits, known, w.growth(j))
	}
	if a, r := w.p.Consider(w.s, "j1g0", fleet.Wish{ID: 10, Verb: fleet.WishGrow, Count: 1, Within: time.Second}); r != nil || a.Code != fleet.WishBusy {
		t.Errorf("a second one at once: %+v, %+v", a, r)
	}
	w.answerAll()
	said, waits, known := GrowthSaid(w.s, w.s.Guests["j1g0"], wish)
	if text := strings.Join(said.Rows, "\n"); waits || !known || said.Code != fleet.WishDone || text != "count 2\nfirst 1\nslots 1\nhosts guest1:1,guest2:1" {
		t.Errorf("%q, %+v", text, said)
	}
	is := w.s.Jobs[j]
	if is.State != fleet.JobRunning || is.Size() != 3 || w.s.Guests["j1g1"].State != fleet.GuestRunning || w.s.Guests["j1g1"].Home == w.s.Guests["j1g2"].Home {
		t.Errorf("%+v, %+v", is, w.s.Guests)
	}
	for id := range w.s.Hosts { // all of its hosts reach the new ones
		for _, n := range desired.Wanted(w.s, id).Networks {
			if len(n.Endpoints) < 3 {
				t.Errorf("%s knows %+v", id, n.Endpoints)
			}
		}
	}
	if text := w.explain(Subject{Job: j}); !strings.Contains(text, "in 3 guests") || !strings.Contains(text, "may ask for 3 guests more than it began with, and has 2 of them") {
		t.Error(text)
	}
	if err := w.grow(j, "r2", 2, time.Minute); err == nil || !strings.Contains(err.Error(), "may have 1 guest more (run --grow 3), and not 2") {
		t.Error(err)
	}
	w.must(fleet.Request{Verb: fleet.Drain, Host: w.s.Guests["j1g2"].Home}) // they move as all others do
	w.answerAll()
	w.turn(3)
	if g := w.s.Guests["j1g2"]; g.State != fleet.GuestRunning || g.Gen != 2 {
		t.Errorf("it has not moved: %+v", g)
	}
	w.exited[j] = true // and end with the program
	w.answerAll()
	if is := w.s.Jobs[j]; is.State != fleet.JobEnded || is.Result != fleet.JobFinished {
		t.Errorf("%+v", is)
	}
	w.tick(2 * keepGuests)
	for id, g := range w.s.Guests {
		t.Errorf("%s is left: %+v", id, g)
	}
}

func TestAJobDoesNotGrow(t *testing.T) {
	w, j := growing(t, 1, 4, "host1", "host2")
	other := w.running(1, nil)
	for _, c := range []struct {
		job    fleet.JobID
		count  int
		within time.Duration
		says   string
	}{
		{"j9", 1, time.Second, "no job j9"}, {j, 0, time.Second, "1 to 16 guests"}, {j, 17, time.Second, "1 to 16 guests"},
		{j, 1, 0, "may wait"}, {j, 1, time.Hour, "may wait"}, {j, 5, time.Second, "may have 4 guests more"}, {other, 1, time.Second, "without --grow"},
	} {
		if err := w.grow(c.job, "r", c.count, c.within); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	w.exited[j] = true
	w.answerAll()
	if err := w.grow(j, "r", 1, time.Second); err == nil || !strings.Contains(err.Error(), "grows while its program runs") {
		t.Error(err)
	}
}

// Guests for which there is no room are waited for, and refused with the hosts' reasons when the time is over.
func TestGrowthWaitsForRoom(t *testing.T) {
	w, j := growing(t, 1, 8, "host1", "host2")
	full := w.running(6, nil) // of 8 that fit
	if err := w.grow(j, "r1", 2, 20*time.Second); err != nil {
		t.Fatal(err)
	}
	if text := w.explain(Subject{Job: j}); w.growth(j).State != fleet.GrowthWaiting || !strings.Contains(text, "waits for 20s at most: there is no room for guest 2 of 2 more") {
		t.Error(text)
	}
	w.turn(19)
	if g := w.growth(j); g.State != fleet.GrowthWaiting || len(w.s.Guests) != 7 {
		t.Fatalf("%+v, %d guests", g, len(w.s.Guests))
	}
	w.turn(2)
	if g := w.growth(j); g.State != fleet.GrowthFailed || !strings.Contains(g.Cause, "no room for guest 2 of 2") || w.s.Jobs[j].Grown != 0 || len(w.s.Guests) != 7 {
		t.Errorf("%+v, %d guests", g, len(w.s.Guests))
	}
	if err := w.grow(j, "r2", 2, time.Minute); err != nil {
		t.Fatal(err)
	}
	w.must(fleet.Request{Verb: fleet.Cancel, Job: full})
	w.answerAll()
	w.turn(2)
	if g := w.growth(j); g.State != fleet.GrowthDone {
		t.Errorf("%+v", g)
	}
}

// What jobs that wait have reserved is not taken from them.
func TestGrowthTakesNothingThatIsReserved(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	j := w.running(1, func(s *fleet.JobSpec) { s.Grow = 8 })
	w.running(6, func(s *fleet.JobSpec) { s.Time = 10 * time.Minute })
	waits := w.must(func() fleet.Request { r := submission(2); r.Spec.Time = time.Hour; return r }()).Job
	if w.s.Jobs[waits].State != fleet.JobPending {
		t.Fatalf("%+v", w.s.Jobs[waits])
	}
	if err := w.grow(j, "r1", 1, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	// One guest more has room, and the job that waits has it where the other job ends: nothing is taken from it.
	w.answerAll()
	if g := w.growth(j); g.State == fleet.GrowthStarting {
		t.Errorf("%+v", g)
	}
}

// One that cannot start ends the growth and not the job, and the others of it are stopped. The next guests of these names are
// newer than those.
func TestAGuestThatDoesNotStartEndsTheGrowthOnly(t *testing.T) {
	for _, lost := range []bool{false, true} {
		w, j := growing(t, 1, 4, "host1", "host2", "host3")
		if err := w.grow(j, "r1", 2, time.Minute); err != nil {
			t.Fatal(err)
		}
		home := w.s.Guests["j1g2"].Home
		if home == w.s.Guests["j1g0"].Home {
			t.Fatal("the test is of guests elsewhere")
		}
		if lost {
			w.loseHost(home)
		} else {
			for i, o := range w.wire {
				if o.Verb == fleet.Start && o.Guest == "j1g2" {
					w.refused[o] = true
					w.answer(i)
					break
				}
			}
			w.answerAll()
		}
		g, is := w.growth(j), w.s.Jobs[j]
		if is.State != fleet.JobRunning || is.Grown != 0 || g.State != fleet.GrowthFailed || !strings.Contains(g.Cause, "j1g2 did not start") && !lost || len(w.guests["host1"])+len(w.guests["host2"])+len(w.guests["host3"]) != 1 {
			t.Fatalf("lost: %t: %+v, %+v, %v", lost, g, is, w.guests)
		}
		if lost {
			w.reconnect(home)
		}
		w.turn(2)
		if err := w.grow(j, "r2", 2, time.Minute); err != nil {
			t.Fatal(err)
		}
		w.answerAll()
		if g := w.growth(j); g.State != fleet.GrowthDone || w.s.Guests["j1g1"].Gen < 2 || w.s.Guests["j1g2"].Gen < 2 {
			t.Errorf("%+v, %+v", g, w.s.Guests)
		}
	}
}

// Guests that do not start in time are stopped, also where a host does not answer.
func TestGrowthThatTakesTooLong(t *testing.T) {
	w, j := growing(t, 1, 4, "host1", "host2", "host3")
	if err := w.grow(j, "r1", 2, 30*time.Second); err != nil {
		t.Fatal(err)
	}
	w.tick(31 * time.Second)
	if g := w.growth(j); g.State != fleet.GrowthStopping || !strings.Contains(g.Cause, "did not all start within 30s") {
		t.Fatalf("%+v", g)
	}
	w.answerAll()
	if g := w.growth(j); g.State != fleet.GrowthFailed || w.s.Jobs[j].Grown != 0 || w.s.Jobs[j].State != fleet.JobRunning {
		t.Errorf("%+v, %+v", g, w.s.Jobs[j])
	}
}

// A checkpoint has all guests, and the job goes on from it with all of them. What was answered is known there still.
func TestAGrownJobGoesOnFromItsCheckpoint(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3", "host4")
	j := w.running(1, func(s *fleet.JobSpec) { s.Grow, s.Restarts = 4, 2 })
	if err := w.grow(j, "r1", 2, time.Minute); err != nil {
		t.Fatal(err)
	}
	id := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}).Checkpoint // it waits for the guests that start
	w.phase(id, fleet.Due)
	w.answerAll()
	w.turn(2)
	c := w.phase(id, fleet.Kept)
	if len(c.Guests) != 3 {
		t.Fatalf("%+v", c.Guests)
	}
	if err := w.grow(j, "r2", 1, time.Minute); err != nil {
		t.Fatal(err)
	}
	w.answerAll()
	w.loseHost(w.s.Guests["j1g1"].Home)
	is := w.s.Jobs[j]
	if is.State != fleet.JobRunning || is.From != id || is.Size() != 3 || w.s.Guests["j1g2"].State != fleet.GuestRunning {
		t.Fatalf("%+v", is)
	}
	_, first := is.GrowthFor("r1")
	if _, second := is.GrowthFor("r2"); !first || second {
		t.Errorf("%+v", is.Growths)
	}
	if err := w.grow(j, "r2", 1, time.Minute); err != nil { // its program asks again
		t.Fatal(err)
	}
	w.answerAll()
	if is := w.s.Jobs[j]; is.Size() != 4 || w.growth(j).State != fleet.GrowthDone {
		t.Errorf("%+v", is)
	}
	w.must(fleet.Request{Verb: fleet.Restart, Job: j, Beginning: true})
	w.answerAll()
	w.turn(3)
	if is := w.s.Jobs[j]; is.State != fleet.JobRunning || is.Size() != 1 || len(is.Growths) != 0 {
		t.Errorf("from its beginning: %+v", is)
	}
}

// No guest comes between a checkpoint's arming and its end: it would be in neither.
func TestGrowthWaitsForACheckpoint(t *testing.T) {
	for answers := range 12 {
		w, j := growing(t, 2, 2, "host1", "host2", "host3")
		id := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}).Checkpoint
		for range answers {
			if i := w.next(); i >= 0 {
				w.answer(i)
			}
		}
		being := beingMade(w.s.Checkpoints[id])
		if err := w.grow(j, fleet.RequestID(fmt.Sprint("r", answers)), 1, time.Minute); err != nil {
			t.Fatal(err)
		}
		if s := w.growth(j).State; being && s != fleet.GrowthWaiting {
			t.Errorf("after %d answers it is %s while a checkpoint is %s", answers, s, w.s.Checkpoints[id].Phase)
		}
		w.answerAll()
		w.turn(3)
		if g := w.growth(j); g.State != fleet.GrowthDone {
			t.Errorf("after %d answers: %+v", answers, g)
		}
		w.phase(id, fleet.Kept)
	}
}

// Whatever becomes of the job meanwhile, nothing is left of a growth.
func TestJobsThatEndWhileTheyGrow(t *testing.T) {
	for answers := range 6 {
		w, j := growing(t, 1, 2, "host1", "host2", "host3")
		if err := w.grow(j, "r1", 2, time.Minute); err != nil {
			t.Fatal(err)
		}
		for range answers {
			if i := w.next(); i >= 0 {
				w.answer(i)
			}
		}
		w.must(fleet.Request{Verb: fleet.Cancel, Job: j})
		w.turn(40)
		is := w.s.Jobs[j]
		if is.State != fleet.JobEnded || !w.growth(j).State.Over() {
			t.Errorf("after %d answers: %+v", answers, is)
		}
		for id, here := range w.guests {
			if len(here) > 0 {
				t.Errorf("after %d answers %s has %v", answers, id, here)
			}
		}
	}
}

// A job that had grown and finds no room again holds up none that needs fewer guests.
func TestAGrownJobWithoutRoomHoldsUpNobodyElse(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	large := func(s *fleet.JobSpec) { s.Grow, s.Need.MemoryBytes = 2, 1536<<20 }
	suspended := func(more int) fleet.JobID {
		j := w.running(1, large)
		if more > 0 {
			if err := w.grow(j, "r1", more, time.Minute); err != nil {
				t.Fatal(err)
			}
			w.answerAll()
		}
		w.must(fleet.Request{Verb: fleet.SuspendJob, Job: j})
		w.answerAll()
		w.state(map[fleet.JobID]fleet.JobState{j: fleet.JobSuspended})
		return j
	}
	grown, small := suspended(2), suspended(0)
	w.must(fleet.Request{Verb: fleet.Drain, Host: "host3"})
	w.must(fleet.Request{Verb: fleet.ResumeJob, Job: grown})
	w.must(fleet.Request{Verb: fleet.ResumeJob, Job: small})
	w.answerAll()
	w.tick(2 * time.Second)
	w.answerAll()
	w.state(map[fleet.JobID]fleet.JobState{grown: fleet.JobPending, small: fleet.JobRunning})
}

// The store refuses a job with such a number, and with it the whole cluster.
func TestNoJobMayGrowBeyondWhatJobsHave(t *testing.T) {
	w := newWorld(t, "host1")
	for _, more := range []int{-1, math.MinInt, fleet.MaxGuestsPerJob, math.MaxInt - 1, math.MaxInt} {
		r := submission(1)
		r.Spec.Grow = more
		if _, err := w.ask(r); err == nil || !strings.Contains(err.Error(), "--"+fleet.GrowFlag) {
			t.Errorf("by %d: %v", more, err)
		}
	}
	r := submission(1)
	r.Spec.Grow = fleet.MaxGuestsPerJob - 1
	w.must(r)
}

// The jobs of a user grow together by no more guests than a user's may; others' do not count.
func TestAUsersJobsGrowTogether(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	w.p.GrowEach = 3
	begin := func(uid uint32, grow int) (fleet.JobID, error) {
		r := submission(1)
		r.Spec.UID, r.Spec.Grow = uid, grow
		a, err := w.ask(r)
		w.answerAll()
		return a.Job, err
	}
	if _, err := begin(7, 4); err == nil || !strings.Contains(err.Error(), "may grow by 3 guests at most, and not by 4; ask for fewer with --grow") {
		t.Fatalf("a job that may grow by more than all: %v", err)
	}
	one, err1 := begin(7, 3)
	two, err2 := begin(7, 3)
	other, err3 := begin(8, 3)
	if err1 != nil || err2 != nil || err3 != nil {
		t.Fatal(err1, err2, err3)
	}
	if err := w.grow(one, "a", 2, time.Minute); err != nil {
		t.Fatal(err)
	}
	refused := func() {
		t.Helper()
		if err := w.grow(two, "b", 2, time.Minute); err == nil || !strings.Contains(err.Error(), "have grown by 2 of the 3 guests by which they may grow together, and not by 2 more") {
			t.Errorf("%v", err)
		}
	}
	refused() // they start
	w.answerAll()
	refused()
	if err := w.grow(two, "c", 1, time.Minute); err != nil {
		t.Error(err)
	}
	if err := w.grow(other, "d", 3, time.Minute); err != nil {
		t.Errorf("another user: %v", err)
	}
	w.answerAll()
	w.must(fleet.Request{Verb: fleet.Cancel, Job: one, By: fleet.Caller{Admin: true}})
	w.answerAll()
	if err := w.grow(two, "e", 2, time.Minute); err != nil {
		t.Errorf("after the other job's end: %v", err)
	}
}
