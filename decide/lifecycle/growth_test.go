package lifecycle

import (
	"fmt"
	"testing"
	"time"

	"pagurus/fleet"
)

// grown is a running job of one guest that grows by two, in states.
func grown(at fleet.GrowthState, a, b fleet.GuestState) (fleet.Job, []fleet.Guest) {
	j := fleet.Job{ID: "j1", State: fleet.JobRunning, Spec: fleet.JobSpec{Guests: 1, Ranks: 1, Grow: 4}}
	j = StartGrowth(BeginGrowth(j, fleet.Request{ID: "r1", Count: 2, Within: time.Minute}, t0))
	if at == fleet.GrowthStopping {
		j, _ = EndGrowth(j, "too late", t0)
	}
	var gs []fleet.Guest
	for i, s := range []fleet.GuestState{fleet.GuestRunning, a, b} {
		gs = append(gs, fleet.Guest{ID: fleet.GuestID(fmt.Sprint("j1g", i)), Job: "j1", Index: i, State: s, Cause: "it broke"})
	}
	return j, gs
}

var guestStates = []fleet.GuestState{fleet.GuestStarting, fleet.GuestRunning, fleet.GuestMoving, fleet.GuestStopping, fleet.GuestSought, fleet.GuestEnded, fleet.GuestLost}

// In every state of a growth and its guests: the job runs on; the growth is done only if all run; one that cannot be stops all its
// guests, and the job has none of them when they are gone. Settled twice, nothing changes.
func TestGrowthInEveryState(t *testing.T) {
	for _, at := range []fleet.GrowthState{fleet.GrowthStarting, fleet.GrowthStopping} {
		for _, a := range guestStates {
			for _, b := range guestStates {
				j, gs := grown(at, a, b)
				name := fmt.Sprintf("%s with %s and %s", at, a, b)
				is, stopped, _ := SettleJob(j, gs, t0)
				if is.State != fleet.JobRunning || is.Result != "" {
					t.Fatalf("%s: the job is %s: %s", name, is.State, is.Cause)
				}
				up := (a == fleet.GuestRunning || a == fleet.GuestMoving) && (b == fleet.GuestRunning || b == fleet.GuestMoving)
				g := is.Growths[0]
				if done := g.State == fleet.GrowthDone; done != (up && at == fleet.GrowthStarting) || done && len(stopped) > 0 {
					t.Errorf("%s: it is %s, and %v are stopped", name, g.State, stopped)
				}
				if fails := a.Ended() || b.Ended() || at == fleet.GrowthStopping; fails != (g.State == fleet.GrowthStopping || g.State == fleet.GrowthFailed) || fails != (g.Cause != "") {
					t.Errorf("%s: it is %s: %q", name, g.State, g.Cause)
				}
				for _, s := range stopped {
					if s.Index == 0 {
						t.Errorf("%s: the job's own guest is stopped", name)
					}
					gs[s.Index] = s
				}
				if over := gs[1].State.Ended() && gs[2].State.Ended(); over != (g.State == fleet.GrowthFailed) || over != (is.Grown == 0) {
					t.Errorf("%s: it is %s, and the job has %d more", name, g.State, is.Grown)
				}
				if again, more, changed := SettleJob(is, gs[:is.Size()], t0); changed || len(more) > 0 {
					t.Errorf("%s: settled again: %+v, %v", name, again, more)
				}
			}
		}
	}
}

// When the job's own guest is gone, or the job stops, all its guests are, whatever becomes of a growth.
func TestGrowthsOfJobsThatEnd(t *testing.T) {
	for _, at := range []fleet.GrowthState{fleet.GrowthStarting, fleet.GrowthStopping} {
		for _, a := range guestStates {
			j, gs := grown(at, a, fleet.GuestRunning)
			gs[0].State = fleet.GuestEnded
			for range 2 {
				is, stopped, _ := SettleJob(j, gs, t0)
				if is.State != fleet.JobStopping && is.State != fleet.JobEnded || is.Result != fleet.JobFailed {
					t.Fatalf("%s, %s: the job is %s", at, a, is.State)
				}
				for _, s := range stopped {
					gs[s.Index] = s
				}
				for i := range gs {
					if gs[i].State == fleet.GuestStopping || gs[i].State == fleet.GuestMoving {
						gs[i].State = fleet.GuestEnded
					}
				}
				j = is
			}
			if g := j.Growths[0]; j.State != fleet.JobEnded || g.State != fleet.GrowthFailed || g.Cause == "" {
				t.Errorf("%s, %s: %s, %+v", at, a, j.State, g)
			}
		}
	}
}

func TestGrowthsThatAreKept(t *testing.T) {
	j := fleet.Job{State: fleet.JobRunning, Spec: fleet.JobSpec{Guests: 1, Grow: 200}}
	for i := range 2 * fleet.GrowthsKept {
		before := j
		j = StartGrowth(BeginGrowth(j, fleet.Request{ID: fleet.RequestID(fmt.Sprint(i)), Count: 1, Within: time.Minute}, t0))
		if _, begun := before.GrowthFor(fleet.RequestID(fmt.Sprint(i))); begun {
			t.Fatal("the job before has changed")
		}
		var changed bool
		if j, _, changed = settleGrowth(j, []fleet.Guest{{Index: i + 1, State: fleet.GuestRunning}}, t0); !changed {
			t.Fatalf("%d: %+v", i, j.Growths)
		}
	}
	if n := len(j.Growths); n != fleet.GrowthsKept || j.Grown != 2*n {
		t.Errorf("%d are kept, of %d", n, j.Grown)
	}
	if _, changed := EndGrowth(j, "no", t0); changed {
		t.Error("what is done has ended")
	}
	// A checkpoint at which it had ten more: what came of the later calls is asked for again.
	is := BeginJob(Enqueue(j, "", t0), 11, 7, "host1", t0)
	if is.Grown != 10 || len(is.Growths) != 2 || is.Size() != 11 {
		t.Errorf("%d more, %+v", is.Grown, is.Growths)
	}
	if is := BeginJob(Enqueue(j, "", t0), 1, 7, "host1", t0); is.Grown != 0 || len(is.Growths) != 0 {
		t.Errorf("from its beginning: %+v", is)
	}
}
