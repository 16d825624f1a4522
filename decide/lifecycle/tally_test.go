package lifecycle

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"pagurus/fleet"
)

// Where a tally is in line SettleJob has nothing to do. A tally is in line in the states
// in which jobs spend their time.
func TestTally(t *testing.T) {
	states := []fleet.GuestState{fleet.GuestStarting, fleet.GuestRunning, fleet.GuestMoving, fleet.GuestStopping, fleet.GuestSought, fleet.GuestEnded, fleet.GuestLost}
	rapid.Check(t, func(t *rapid.T) {
		j := fleet.Job{ID: "j1", Spec: fleet.JobSpec{Guests: 4},
			State: rapid.SampledFrom([]fleet.JobState{fleet.JobStarting, fleet.JobRunning, fleet.JobStopping, fleet.JobEnded}).Draw(t, "job")}
		var guests []fleet.Guest
		var tally Tally
		for i := range rapid.IntRange(0, 4).Draw(t, "guests") {
			g := fleet.Guest{ID: fleet.GuestID(fmt.Sprint("j1g", i)), Job: j.ID, State: rapid.SampledFrom(states).Draw(t, "guest")}
			was := rapid.SampledFrom(states).Draw(t, "before")
			tally.Count(was, 1)
			tally.Count(was, -1)
			tally.Count(g.State, 1)
			guests = append(guests, g)
		}
		_, stopped, changed := SettleJob(j, guests, t0)
		if tally.InLine(j) && (changed || len(stopped) > 0) {
			t.Fatalf("job %s with %+v: it is not in line", j.State, guests)
		}
		if j.State == fleet.JobRunning && !changed && !tally.InLine(j) {
			t.Fatalf("job %s with %+v: nothing is to be done", j.State, guests)
		}
		if tally.InLine(j) && j.State == fleet.JobStopping && tally.Moving > 0 {
			t.Fatal("a guest that moves has to be called back")
		}
	})
}
