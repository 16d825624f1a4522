package lifecycle

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

var (
	outcomes = []fleet.Outcome{fleet.Done, fleet.Failed, fleet.Unknown}
	t0       = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
)

// total checks that a state with an order handles every outcome exactly once, and that
// other states handle none.
func total[S ~string](t *testing.T, stages []stage[S], arrows []arrow[S]) {
	t.Helper()
	known := map[S]bool{}
	for _, st := range stages {
		if known[st.in] {
			t.Errorf("%s is there twice", st.in)
		}
		known[st.in] = true
		if (st.verb == "") == (st.says == "") {
			t.Errorf("%s must have either an order or words", st.in)
		}
		for _, o := range outcomes {
			n := 0
			for _, a := range arrows {
				if a.from == st.in && a.on == o {
					n++
				}
			}
			if want := map[bool]int{true: 1, false: 0}[st.verb != ""]; n != want {
				t.Errorf("%s on %s: %d arrows, want %d", st.in, o, n, want)
			}
		}
	}
	for _, a := range arrows {
		if !known[a.from] || !known[a.to] || (a.last != "" && !known[a.last]) {
			t.Errorf("%s on %s leads through an unknown state", a.from, a.on)
		}
		if a.tries != 0 && a.to != a.from {
			t.Errorf("%s on %s counts tries but is no retry", a.from, a.on)
		}
		if (a.tries != 0) != (a.last != "") {
			t.Errorf("%s on %s: tries and last go together", a.from, a.on)
		}
	}
}

func TestTablesAreTotal(t *testing.T) {
	total(t, migrationStages, migrationArrows)
	total(t, guestStages, guestArrows)
	total(t, jobStages, jobArrows)
	for _, s := range []fleet.HostState{fleet.HostUp, fleet.HostDraining} {
		for _, v := range []fleet.RequestVerb{fleet.Drain, fleet.Undrain} {
			n := 0
			for _, a := range hostArrows {
				if a.from == s && a.on == v {
					n++
				}
			}
			if n != 1 {
				t.Errorf("host %s on %s: %d lines", s, v, n)
			}
		}
	}
}

// The traits in fleet agree with the arrows. Apart from the gang's rule only switching
// commits, only reverting undoes that, and no arrow leads from the way back to the way
// forward.
func TestTraitsAgreeWithTheTable(t *testing.T) {
	known := map[fleet.Phase]bool{}
	for i, st := range migrationStages {
		p := fleet.Phases[i]
		if known[p.Phase] || st.in != p.Phase || st.verb != p.Verb || (p.Verb == "") != (p.Label != "") || (p.Verb == "") != (p.Side == "") || p.Phase.Traits() != p {
			t.Errorf("%s has no row of its own, or one without order and label: %+v", st.in, p)
		}
		known[p.Phase] = true
		m := fleet.Migration{ID: "m1.g0", From: "source", To: "target", Phase: p.Phase}
		if o, waits := MigrationOrder(m); waits && (o.Host != fleet.HostID(p.Side) || o.Host == o.Peer) {
			t.Errorf("in %s the order goes to %s, not to the %s", p.Phase, o.Host, p.Side)
		}
	}
	for _, a := range slices.Concat(migrationArrows, postCopyArrows) {
		for _, to := range []fleet.Phase{a.to, a.last} {
			if to == "" || to == a.from {
				continue
			}
			p, next := a.from.Traits(), to.Traits()
			switch {
			case !known[a.from] || !known[to]:
				t.Errorf("%s leads to %s, and one of them has no row", a.from, to)
			case !p.Committed && next.Committed && to != fleet.Lost, p.Committed && !next.Committed && to != fleet.Reverting:
				t.Errorf("%s leads to %s across the point of no return", a.from, to)
			case p.Back && !next.Back && to != fleet.Lost, p.Arrived && !next.Arrived:
				t.Errorf("%s leads to %s, which undoes what was reached", a.from, to)
			}
		}
	}
	if !fleet.Switching.Traits().Committed || fleet.Ready.Traits().Committed {
		t.Error("entering switching is the point of no return")
	}
	for _, s := range fleet.Phases {
		if moves := s.Verb.Moves(); moves && (s.Back || s.Verb == fleet.Retire) {
			t.Errorf("%s counts as on the way", s.Verb)
		}
	}
}

// A phase has ended exactly when fleet says so and no order is outstanding.
func TestEndedPhasesWaitForNothing(t *testing.T) {
	for _, st := range migrationStages {
		if st.in.Ended() != (st.verb == "" && st.in != fleet.Ready && st.in != fleet.Waiting) {
			t.Errorf("%s: verb %q, ended %t", st.in, st.verb, st.in.Ended())
		}
	}
}

func TestHost(t *testing.T) {
	h := Enlist("host1", t0)
	later := t0.Add(time.Hour)
	h, changed := Host(h, fleet.Drain, later)
	if !changed || h.State != fleet.HostDraining || !h.Since.Equal(later) {
		t.Fatalf("drain: %+v", h)
	}
	if _, changed = Host(h, fleet.Drain, later); changed {
		t.Error("draining twice changed something")
	}
	if h, _ = Host(h, fleet.Undrain, later); h.State != fleet.HostUp {
		t.Errorf("undrain: %+v", h)
	}
}

func TestGuest(t *testing.T) {
	start := fleet.Guest{ID: "j1g0", Job: "j1", Home: "host1", State: fleet.GuestStarting, Gen: 1}
	step := func(g fleet.Guest, o fleet.Outcome, cause string) fleet.Guest {
		t.Helper()
		order, _ := GuestOrder(g)
		next, _, err := Guest(g, fleet.Report{At: t0, Order: order, Outcome: o, Cause: cause})
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	g := step(start, fleet.Failed, "no image")
	if g.State != fleet.GuestEnded || g.Cause != "no image" {
		t.Errorf("failed start: %+v", g)
	}
	g = start
	for i := 0; i <= startTries; i++ {
		if g.State != fleet.GuestStarting || g.Attempt != i {
			t.Fatalf("try %d: %+v", i, g)
		}
		g = step(g, fleet.Unknown, "")
	}
	if g.State != fleet.GuestEnded || g.Cause != "host1 did not answer the order to start" {
		t.Errorf("unknown start: %+v", g)
	}
	running := step(start, fleet.Done, "")
	again := running
	again.Attempt++
	if g = step(running, fleet.Unknown, ""); g != again {
		t.Errorf("an unknown watch led to %+v", g)
	}
	if g = step(running, fleet.Done, ""); g.State != fleet.GuestEnded || g.Cause != "it ended by itself" {
		t.Errorf("ended: %+v", g)
	}
	g, _ = Stop(running, t0)
	for i := 0; i <= moreTries; i++ {
		g = step(g, fleet.Failed, "device busy")
	}
	if g.State != fleet.GuestEnded || g.Cause != "device busy" {
		t.Errorf("stop that never works: %+v", g)
	}
	stale, _ := GuestOrder(start)
	if _, changed, _ := Guest(running, fleet.Report{Order: stale, Outcome: fleet.Done}); changed {
		t.Error("a stale report changed a guest")
	}
	order, _ := GuestOrder(start)
	if _, _, err := Guest(start, fleet.Report{Order: order, Outcome: "odd"}); err == nil {
		t.Error("an unknown outcome was taken")
	}
}

func TestJob(t *testing.T) {
	j := fleet.Job{ID: "j1", State: fleet.JobStarting, Spec: fleet.JobSpec{Guests: 2}}
	gs := []fleet.Guest{
		{ID: "j1g0", Job: "j1", Home: "host1", State: fleet.GuestRunning, Gen: 1},
		{ID: "j1g1", Job: "j1", Home: "host2", State: fleet.GuestStarting, Gen: 1},
	}
	if _, _, changed := SettleJob(j, gs, t0); changed {
		t.Fatal("a job began to run before its guests did")
	}
	gs[1].State = fleet.GuestRunning
	j, _, _ = SettleJob(j, gs, t0)
	if j.State != fleet.JobRunning || !j.Started.Equal(t0) {
		t.Fatalf("not running: %+v", j)
	}
	order, _ := JobOrder(j, gs[0], fleet.Migration{})
	again, changed, _ := Job(j, gs[0], fleet.Migration{}, fleet.Report{Order: order, Outcome: fleet.Unknown})
	if !changed || again.State != fleet.JobRunning || again.Attempt != 1 {
		t.Fatalf("unknown run: %+v", again)
	}
	done, _, _ := Job(j, gs[0], fleet.Migration{}, fleet.Report{At: t0, Order: order, Outcome: fleet.Done, Exit: &fleet.Exit{Code: 3}})
	if done.State != fleet.JobStopping || done.Result != fleet.JobFinished || done.Exit.Code != 3 {
		t.Fatalf("done: %+v", done)
	}
	done, stopped, _ := SettleJob(done, gs, t0)
	if len(stopped) != 2 || stopped[0].State != fleet.GuestStopping || done.State != fleet.JobStopping {
		t.Fatalf("stopping: %+v %+v", done, stopped)
	}
	for i := range stopped {
		stopped[i].State = fleet.GuestEnded
	}
	if done, _, _ = SettleJob(done, stopped, t0); done.State != fleet.JobEnded || done.Result != fleet.JobFinished {
		t.Fatalf("ended: %+v", done)
	}
	gs[1].State, gs[1].Cause = fleet.GuestEnded, "out of memory"
	lost, stopped, _ := SettleJob(j, gs, t0)
	if lost.Result != fleet.JobFailed || lost.Cause != "guest j1g1 ended: out of memory" || len(stopped) != 1 {
		t.Fatalf("guest gone: %+v", lost)
	}
	if cancelled, ok := Cancel(lost, t0, 0, "asked for"); ok || cancelled.Result != fleet.JobFailed {
		t.Error("cancelling a job that had failed changed its result")
	}
}

// A program that fails may have noticed first that a guest was lost. A job that may begin again waits for that, and no other does.
func TestProgramFailsBeforeALossIsKnown(t *testing.T) {
	j := fleet.Job{ID: "j1", State: fleet.JobRunning, Spec: fleet.JobSpec{Guests: 2, Restarts: 1}}
	gs := []fleet.Guest{
		{ID: "j1g0", Job: "j1", Home: "host1", State: fleet.GuestRunning, Gen: 1},
		{ID: "j1g1", Job: "j1", Home: "host2", State: fleet.GuestRunning, Gen: 1},
	}
	order, _ := JobOrder(j, gs[0], fleet.Migration{})
	exits := func(j fleet.Job, code int) fleet.Job {
		j, changed, err := Job(j, gs[0], fleet.Migration{}, fleet.Report{At: t0, Order: order, Outcome: fleet.Done, Exit: &fleet.Exit{Code: code}})
		if !changed || err != nil {
			t.Fatal(changed, err)
		}
		return j
	}
	failed := exits(j, 255)
	if _, waits := JobOrder(failed, gs[0], fleet.Migration{}); waits || failed.State != fleet.JobRunning || failed.Computes() {
		t.Fatalf("%+v", failed)
	}
	if again, changed, _ := Job(failed, gs[0], fleet.Migration{}, fleet.Report{At: t0, Order: order, Outcome: fleet.Done}); changed {
		t.Errorf("said again, it became %+v", again)
	}
	if _, over := Overrun(failed, t0.Add(lossNotice-1)); over {
		t.Error("it did not wait")
	}
	own, over := Overrun(failed, t0.Add(lossNotice))
	if !over || own.State != fleet.JobStopping || own.Result != fleet.JobFinished || own.Exit.Code != 255 || own.Requeue || !own.Exited.IsZero() {
		t.Errorf("by its own fault: %+v", own)
	}
	gs[1].State, gs[1].HostFault, gs[1].Cause = fleet.GuestEnded, true, "killed"
	lost, _, _ := SettleJob(failed, gs, t0.Add(time.Second))
	if lost.State != fleet.JobStopping || !lost.Requeue || lost.Restarted != 1 {
		t.Errorf("lost: %+v", lost)
	}
	if cancelled, ok := Cancel(failed, t0, time.Hour, "asked for"); !ok || cancelled.State != fleet.JobStopping || cancelled.Result != fleet.JobCancelled {
		t.Errorf("cancelled: %+v", cancelled)
	}
	if ended := exits(j, 0); ended.State != fleet.JobStopping {
		t.Errorf("without a fault: %+v", ended)
	}
	j.Restarted = 1
	if ended := exits(j, 255); ended.State != fleet.JobStopping {
		t.Errorf("it may not begin again: %+v", ended)
	}
}

// A program that ends with 0 though a guest had died has not finished: mpirun does so when it loses a guest at times.
func TestProgramFinishesWithADeadGuest(t *testing.T) {
	limit := &fleet.Remains{Died: true, OOMKills: 1}
	for name, c := range map[string]struct {
		remains  *fleet.Remains
		restarts int
		state    fleet.JobState
		result   fleet.JobResult
	}{
		"all were told to stop":      {nil, 1, fleet.JobEnded, fleet.JobFinished},
		"it shut down before":        {&fleet.Remains{Why: "it ended"}, 1, fleet.JobEnded, fleet.JobFinished},
		"one had died":               {&fleet.Remains{Died: true}, 1, fleet.JobPending, ""},
		"and it may not begin again": {&fleet.Remains{Died: true}, 0, fleet.JobEnded, fleet.JobFailed},
		"of its own limit":           {limit, 1, fleet.JobEnded, fleet.JobFailed},
	} {
		j := fleet.Job{ID: "j1", State: fleet.JobStopping, Result: fleet.JobFinished, Exit: &fleet.Exit{}, Spec: fleet.JobSpec{Guests: 2, Restarts: c.restarts}}
		gs := []fleet.Guest{
			{ID: "j1g0", Job: "j1", Home: "host1", State: fleet.GuestEnded, Gen: 1},
			{ID: "j1g1", Job: "j1", Home: "host2", State: fleet.GuestStopping, Gen: 1},
		}
		order, _ := GuestOrder(gs[1])
		var err error
		if gs[1], _, err = Guest(gs[1], fleet.Report{At: t0, Order: order, Outcome: fleet.Done, Remains: c.remains}); err != nil {
			t.Fatal(err)
		}
		j, _, _ = SettleJob(j, gs, t0)
		if j.State != c.state || j.Result != c.result || (j.Exit == nil) != (c.result != fleet.JobFinished) {
			t.Errorf("%s: %+v", name, j)
		}
	}
}

// What a job waits for comes although the clock was set back by hours since.
func TestTheClockIsSetBack(t *testing.T) {
	late := t0.Add(5 * time.Hour)
	j := fleet.Job{ID: "j1", State: fleet.JobRunning, Exited: late, Ending: &fleet.Ending{At: late, Grace: time.Minute}, NextCheckpoint: late,
		Spec: fleet.JobSpec{Checkpoint: &fleet.CheckpointPlan{Every: time.Minute}}}
	is, changed := SetBack(j, 0, t0)
	if !changed || is.Exited != t0 || is.Ending.At != t0 || is.Ending.Grace != time.Minute || is.NextCheckpoint != t0.Add(time.Minute) || j.Ending.At != late {
		t.Errorf("it became %+v, %+v", is, is.Ending)
	}
	if again, changed := SetBack(is, 0, t0); changed {
		t.Errorf("changed again: %+v", again)
	}
	if none, changed := SetBack(fleet.Job{State: fleet.JobRunning}, 0, t0); changed {
		t.Errorf("changed without a reason: %+v", none)
	}
}

func TestPauseAfterAbortedMovesGrows(t *testing.T) {
	for aborts, want := range map[int]time.Duration{1: 30 * time.Second, 2: time.Minute, 4: 4 * time.Minute, 7: longestPause, 1000: longestPause} {
		if got := pauseAfter(aborts); got != want {
			t.Errorf("after %d: %s, want %s", aborts, got, want)
		}
	}
}

func TestCopy(t *testing.T) {
	r := func(sent, left int64) Round { return Round{Took: time.Second, SentBytes: sent, LeftBytes: left} }
	lenient, first := fleet.Limits{Lenient: true}, r(100<<20, 10<<20)
	// A round of a container takes 80 ms, however few its pages.
	small := func(kib int64) Round {
		return Round{Took: 80 * time.Millisecond, SentBytes: kib << 10, LeftBytes: kib << 10}
	}
	for _, c := range []struct {
		name   string
		limits fleet.Limits
		rounds []Round
		want   Verdict
	}{
		{"nothing yet", fleet.Limits{}, nil, GoOn},
		{"small rest", fleet.Limits{}, []Round{r(100<<20, 1<<20)}, SwitchNow},
		{"large rest", fleet.Limits{}, []Round{r(100<<20, 10<<20)}, GoOn},
		{"large rest allowed", fleet.Limits{Downtime: time.Second}, []Round{r(100<<20, 10<<20)}, SwitchNow},
		{"nothing left", fleet.Limits{}, []Round{r(0, 0)}, SwitchNow},
		{"nothing is sent", fleet.Limits{}, []Round{r(0, 10)}, GoOn},
		{"stop first", fleet.Limits{Mode: fleet.StopAndCopy}, nil, SwitchNow},
		{"not sent once yet", fleet.Limits{Mode: fleet.PostCopy}, nil, GoOn},
		{"the rest follows", fleet.Limits{Mode: fleet.PostCopy, Rounds: 1}, []Round{r(100<<20, 90<<20)}, SwitchNow},
		{"no less from round to round", lenient, []Round{first, small(600), small(650), small(590), small(610), small(605)}, SwitchNow},
		{"but somebody has said how long", fleet.Limits{}, []Round{first, small(600), small(650), small(590), small(610), small(605)}, GoOn},
		{"less and less", lenient, []Round{first, small(2000), small(1700), small(1500), small(1300), small(1100)}, GoOn},
		{"not for long", lenient, []Round{first, small(600), small(610)}, GoOn},
		{"much from round to round", lenient, slices.Repeat([]Round{r(100<<20, 100<<20)}, 9), GoOn},
		{"enough", fleet.Limits{Rounds: 2}, []Round{r(100, 50), r(50, 50)}, GiveUp},
	} {
		if got := Copy(c.limits, c.rounds); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestDiagramNamesEveryState(t *testing.T) {
	d := Diagram()
	for _, s := range migrationStages {
		if !strings.Contains(d, "| "+string(s.in)+" |") {
			t.Errorf("the protocol does not print %s", s.in)
		}
	}
}

// The document explains every outcome that a table answers, and no other.
func TestDiagramExplainsEveryOutcome(t *testing.T) {
	answered := map[fleet.Outcome]bool{}
	for _, a := range migrationArrows {
		answered[a.on] = true
	}
	text := Diagram()
	for _, o := range fleet.Outcomes {
		if !answered[o.Outcome] || !strings.Contains(text, "- **"+string(o.Outcome)+"**: ") {
			t.Errorf("%s: answered by a migration: %v", o.Outcome, answered[o.Outcome])
		}
		delete(answered, o.Outcome)
	}
	if len(answered) > 0 {
		t.Errorf("not explained: %v", answered)
	}
}
