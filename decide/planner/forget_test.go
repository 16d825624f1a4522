package planner

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"pagurus/decide/cost"
	"pagurus/decide/state"
	"pagurus/fleet"
)

// Data for learning survives when moves and jobs are forgotten; all else is removed.
func TestWhatMovesTaughtIsKept(t *testing.T) {
	w, j := running(t, 2, "host1", "host2", "host3")
	learnt := func() string {
		l := state.NewIndex(w.s, nil)
		if wrong := l.Check(); wrong != "" {
			t.Error(wrong)
		}
		return fmt.Sprintf("%+v", l.History().Fit(cost.Subject{Kind: fleet.VM, Job: j, From: "host1", To: "host3"}))
	}
	nothing := learnt()
	arrive := func() {
		w.must(fleet.Request{Verb: fleet.Migrate, Guests: []fleet.GuestID{"j1g0", "j1g1"}})
		w.answerAll()
		for id, m := range w.s.Migrations {
			if m.Cost.SentBytes > 0 {
				continue
			}
			m.Entered = []fleet.Entered{{Phase: fleet.Copying, At: w.now}, {Phase: fleet.Finished, At: w.now.Add(2 * time.Second)}}
			m.Cost.SentBytes, m.Cost.Elapsed, m.Cost.Downtime, m.Stall = 50<<20, time.Second, 20*time.Millisecond, &fleet.Stall{}
			w.s.Migrations[id] = m
		}
	}
	arrive()
	taught, score := learnt(), (&Planner{}).Score(w.s)
	w.sleep(keepMoves) // the job goes on
	if got := learnt(); taught == nothing || got != taught || len(w.s.Moves) != 0 || len(w.s.Migrations) != 2 {
		t.Errorf("after a day: %s, was %s, %s of nothing; %+v", got, taught, nothing, w.s.Migrations)
	}
	arrive()
	taught = learnt()
	w.exited[j] = true
	w.answerAll()
	w.sleep(keepGuests)
	if got := learnt(); got != taught || len(w.s.Jobs)+len(w.s.Guests)+len(w.s.Moves) != 0 || len(w.s.Migrations) != 4 {
		t.Errorf("when the job is forgotten: %s, was %s; %+v", got, taught, w.s.Migrations)
	}
	if got := (&Planner{}).Score(w.s); score.Moves != 2 || got.Moves != 4 {
		t.Errorf("scored %+v, then %+v", score, got)
	}
	for _, m := range w.s.Migrations {
		if m.Move != "" || m.Stall != nil || m.Predicted == nil {
			t.Errorf("kept %+v", m)
		}
	}
}

// Learning data is limited to the latest; migrations that did not converge are counted
// separately.
func TestWhatIsKeptIsBounded(t *testing.T) {
	s := fleet.NewSnapshot()
	s.At = t0
	for i := range cost.Remembered + 3 {
		id := fleet.MigrationID(fmt.Sprintf("m%d.j0g0", i))
		m := fleet.Migration{ID: id, Job: "j0", Phase: fleet.Finished, Entered: []fleet.Entered{{At: t0.Add(time.Duration(i) * time.Second)}}}
		s.Migrations[id] = m
		m.ID, m.Phase = "n"+id, fleet.Aborted
		s.Migrations[m.ID] = m
	}
	s.Moves["m"] = fleet.Move{ID: "m", Migrations: []fleet.MigrationID{"m.old", "m.new", "m.off", "m.tried"}, Ended: t0}
	for id, m := range map[fleet.MigrationID]fleet.Migration{
		"m.old": {Phase: fleet.Finished, Entered: []fleet.Entered{{At: t0}}},
		"m.new": {Phase: fleet.Finished, Entered: []fleet.Entered{{At: t0.Add(time.Hour)}}},
		"m.off": {Phase: fleet.Aborted, Entered: []fleet.Entered{{At: t0.Add(time.Hour)}}},
		"m.tried": {Phase: fleet.Aborted, Entered: []fleet.Entered{{At: t0.Add(time.Hour)}},
			Predicted: &fleet.Prediction{Limits: fleet.Limits{Rounds: 40}}, Cost: fleet.Progress{Rounds: 40}},
	} {
		m.ID, m.Move = id, "m"
		s.Migrations[id] = m
	}
	d, err := (&Planner{}).Step(s, fleet.Tick{At: t0.Add(keepMoves + time.Second)})
	want := []fleet.MigrationID{"m.off", "m.old", "m0.j0g0", "m1.j0g0", "m2.j0g0", "nm0.j0g0", "nm1.j0g0", "nm2.j0g0"}
	if err != nil || !reflect.DeepEqual(d.Change.GoneMigrations, want) || len(d.Change.Migrations) != 2 || d.Change.Migrations[0].ID != "m.new" || d.Change.Migrations[1].ID != "m.tried" {
		t.Errorf("%+v %v", d.Change, err)
	}
}
