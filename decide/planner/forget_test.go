package planner

import (
	"fmt"
	"reflect"
	"strings"
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

// A dozen users whose jobs have as much in them as may be, as many as may end: what is stored of them stays small, who has few
// keeps them, and each user's newest are kept.
func TestUsersDoNotFillTheStore(t *testing.T) {
	s := fleet.NewSnapshot()
	s.At = t0
	big := strings.Repeat("x", fleet.ProgramBytes/2)
	end := func(uid uint32, i int) {
		id := fleet.JobID(fmt.Sprintf("j%d-%d", uid, i))
		s.Jobs[id] = fleet.Job{ID: id, State: fleet.JobEnded, Ended: t0.Add(time.Duration(i) * time.Second),
			Spec: fleet.JobSpec{UID: uid, Args: []string{"./a.out", big}, Env: []string{big}, Guests: 1, Ranks: 1}}
	}
	const users, each = 21, 1001
	for uid := range uint32(users) {
		for i := range each {
			end(uid, i)
		}
	}
	end(users, 0)
	p := &Planner{KeepJobs: 30 * 24 * time.Hour}
	d, err := p.Step(s, fleet.Tick{At: t0.Add(2 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	s = s.Apply(d.Change, 1)
	stored := 0
	for _, j := range s.Jobs {
		for _, text := range append(j.Spec.Args, j.Spec.Env...) {
			stored += len(text)
		}
	}
	if _, kept := s.Jobs[fleet.JobID(fmt.Sprintf("j%d-0", users))]; !kept || len(s.Jobs) > 20_000 || len(s.Jobs) < 19_000 || stored > 40<<20 {
		t.Errorf("%d jobs are kept, with %d MiB; that of who has one: %v", len(s.Jobs), stored>>20, kept)
	}
	for uid := range uint32(users) {
		if _, kept := s.Jobs[fleet.JobID(fmt.Sprintf("j%d-%d", uid, each-1))]; !kept {
			t.Errorf("the newest job of %d is gone", uid)
		}
	}
}

// A user who has as much in jobs that run as may be is refused, others are not, and once a job has ended there is room.
func TestLiveJobsAreBounded(t *testing.T) {
	w := newWorld(t, "host1")
	r := submission(1)
	r.Spec.UID = 7
	for i := range 400 { // what a job of another cluster could be
		id := fleet.JobID(fmt.Sprintf("k%d", i))
		w.s.Jobs[id] = fleet.Job{ID: id, State: fleet.JobStarting, Subnet: fleet.Subnet(1000 + i), Spec: fleet.JobSpec{UID: 7, Env: []string{strings.Repeat("x", 48<<10)}}}
	}
	p := &Planner{}
	if _, err := p.Step(w.s, r); err == nil || !strings.Contains(err.Error(), "wait until some have ended") {
		t.Errorf("got %v", err)
	}
	other := r
	spec := *r.Spec
	spec.UID = 8
	other.Spec = &spec
	if _, err := p.Step(w.s, other); err != nil {
		t.Errorf("another user: %v", err)
	}
	for i := range 350 {
		id := fleet.JobID(fmt.Sprintf("k%d", i))
		j := w.s.Jobs[id]
		j.State = fleet.JobEnded
		w.s.Jobs[id] = j
	}
	if _, err := p.Step(w.s, r); err != nil {
		t.Errorf("after jobs ended: %v", err)
	}
}

// A gang that goes to and fro all day: of its moves the newest are kept, and no more than may be.
func TestMovesDoNotFillTheStore(t *testing.T) {
	s := fleet.NewSnapshot()
	s.At = t0
	s.Jobs["j1"] = fleet.Job{ID: "j1", State: fleet.JobRunning, Spec: fleet.JobSpec{Guests: 250, Ranks: 250}}
	const moves, gang = 100, 250
	for i := range moves {
		v := fleet.Move{ID: fleet.MoveID(fmt.Sprint("m", i)), Ended: t0.Add(time.Duration(i) * time.Second)}
		for k := range gang {
			m := fleet.Migration{ID: fleet.MigrationID(fmt.Sprintf("%s.j1g%d", v.ID, k)), Move: v.ID, Job: "j1", Phase: fleet.Aborted, Entered: []fleet.Entered{{Phase: fleet.Aborted, At: v.Ended}}}
			s.Migrations[m.ID], v.Migrations = m, append(v.Migrations, m.ID)
		}
		s.Moves[v.ID] = v
	}
	for range 2 {
		d, err := (&Planner{}).Step(s, fleet.Tick{At: t0.Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		s = s.Apply(d.Change, s.Revision+1)
		_, newest := s.Moves["m99"]
		if _, oldest := s.Moves["m0"]; oldest || !newest || len(s.Moves) != mostMoves/(gang+1) {
			t.Errorf("%d moves and %d migrations are kept, the newest: %v", len(s.Moves), len(s.Migrations), newest)
		}
	}
	if most := mostMoves + 2*cost.Remembered; len(s.Migrations) > most {
		t.Errorf("%d migrations are kept", len(s.Migrations))
	}
}
