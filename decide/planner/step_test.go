package planner

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/decide/desired"
	"pagurus/fleet"
)

// running makes a world with one running job.
func running(t checker, guests int, hosts ...fleet.HostID) (*world, fleet.JobID) {
	w := newWorld(t, hosts...)
	j := w.must(submission(guests)).Job
	w.answerAll()
	if w.s.Jobs[j].State != fleet.JobRunning {
		t.Fatalf("job is %s", w.s.Jobs[j].State)
	}
	return w, j
}

func TestJobRunsAndEnds(t *testing.T) {
	w, j := running(t, 4, "host1", "host2")
	if job := w.s.Jobs[j]; j != "j1" || job.ShareHost != "host1" || job.MPI != "openmpi" || job.Spec.Kind != fleet.VM {
		t.Errorf("job: %+v", job)
	}
	homes := map[fleet.HostID]int{}
	for _, g := range w.s.Guests {
		homes[g.Home]++
		if g.Reason == "" || g.Gen != 1 {
			t.Errorf("guest: %+v", g)
		}
	}
	if homes["host1"] != 2 || homes["host2"] != 2 {
		t.Errorf("not spread: %v", homes)
	}
	w.exited[j] = true
	w.answerAll()
	job := w.s.Jobs[j]
	if job.State != fleet.JobEnded || job.Result != fleet.JobFinished || job.Exit.Code != 7 {
		t.Errorf("job: %+v", job)
	}
	if len(w.guests["host1"])+len(w.guests["host2"]) != 0 || len(Pending(w.s)) != 0 {
		t.Error("something was left behind")
	}
	w.tick(keepGuests + 2*time.Second)
	if len(w.s.Jobs)+len(w.s.Guests) != 0 {
		t.Error("an old job was not forgotten")
	}
}

func TestMigrateGoesThroughEveryPhase(t *testing.T) {
	w, j := running(t, 2, "host1", "host2", "host3")
	g := w.s.Guests["j1g0"]
	a := w.must(fleet.Request{ID: "r1", Verb: fleet.Migrate, Guest: g.ID, To: "host3"})
	if again := w.must(fleet.Request{ID: "r1", Verb: fleet.Migrate, Guest: g.ID, To: "host3"}); !reflect.DeepEqual(a, again) {
		t.Errorf("asked twice: %v, then %v", a, again)
	}
	w.answerAll()
	moved := w.s.Guests[g.ID]
	if moved.Home != "host3" || moved.State != fleet.GuestRunning || moved.Gen != 2 || moved.Migration != "" {
		t.Errorf("guest: %+v", moved)
	}
	want := []fleet.Verb{fleet.Receive, fleet.Copy, fleet.Switch, fleet.Activate, fleet.Retire}
	if got := w.verbs(g.ID); !reflect.DeepEqual(got, want) {
		t.Errorf("orders: %v", got)
	}
	m := w.s.Migrations["m1.j1g0"]
	var phases []fleet.Phase
	for _, e := range m.Entered {
		phases = append(phases, e.Phase)
	}
	if want := []fleet.Phase{fleet.Preparing, fleet.Waiting, fleet.Copying, fleet.Ready, fleet.Switching, fleet.Activating, fleet.Retiring, fleet.Finished}; !reflect.DeepEqual(phases, want) {
		t.Errorf("phases: %v", phases)
	}
	if run := w.log[slices.IndexFunc(w.log, func(o fleet.Order) bool { return o.Verb == fleet.Run && o.Gen == 2 })]; run.Host != "host3" {
		t.Errorf("the program was not asked about at its new home: %+v", run)
	}
	if m.Listen != "host3:1" || w.s.Moves["m1"].Ended.IsZero() {
		t.Errorf("migration: %+v", m)
	}
	w.exited[j] = true
	w.answerAll()
	if w.s.Jobs[j].State != fleet.JobEnded {
		t.Errorf("job is %s", w.s.Jobs[j].State)
	}
}

// Every order of a move fails once, or its host is silent before or after carrying it
// out; the guests always exist. Gangs of up to four, with the fault at the first or the
// last order of its kind.
func TestMoveWithEveryFault(t *testing.T) {
	most := 4
	if testing.Short() {
		most = 2
	}
	for guests := 1; guests <= most; guests++ {
		for _, verb := range []fleet.Verb{fleet.Receive, fleet.Copy, fleet.Switch, fleet.Activate, fleet.Retire} {
			for _, fault := range []string{"failed", "before", "after", "restart"} {
				for _, nth := range []int{1, guests} {
					t.Run(fmt.Sprintf("%d_%s_%s_%d", guests, verb, fault, nth), func(t *testing.T) { t.Parallel(); moveWithFault(t, guests, verb, fault, nth, "") })
					if guests == 1 {
						break
					}
				}
			}
		}
	}
}

// The same in post-copy, with its additional order.
func TestPostCopyWithEveryFault(t *testing.T) {
	for _, verb := range []fleet.Verb{fleet.Receive, fleet.Copy, fleet.Switch, fleet.Activate, fleet.Fetch, fleet.Retire} {
		for _, fault := range []string{"failed", "before", "after", "restart"} {
			if verb == fleet.Fetch && fault == "failed" {
				continue // a promise that it will never be complete
			}
			t.Run(fmt.Sprintf("%s_%s", verb, fault), func(t *testing.T) { t.Parallel(); moveWithFault(t, 2, verb, fault, 1, fleet.PostCopy) })
		}
	}
}

func moveWithFault(t *testing.T, guests int, verb fleet.Verb, fault string, nth int, mode fleet.Mode) {
	r := submission(guests)
	r.Spec.On = []fleet.HostID{"host1", "host2"}
	w := newWorld(t, "host1", "host2", "host3")
	j := w.must(r).Job
	w.answerAll()
	w.must(fleet.Request{Verb: fleet.Migrate, Job: j, To: "host3", Limits: fleet.Limits{Mode: mode}})
	for range nth - 1 {
		w.fault(verb, "")
	}
	w.fault(verb, fault)
	for range 60 {
		w.tick(time.Second)
		w.answerAll()
	}
	copies := 0
	for _, g := range w.s.Guests {
		if g.State != fleet.GuestRunning || w.guests[g.Home][g.ID] != fleet.Running {
			t.Fatalf("guest: %+v, hosts: %v", g, w.guests)
		}
	}
	for _, here := range w.guests {
		copies += len(here)
	}
	if copies != guests {
		t.Errorf("something was left behind: %v", w.guests)
	}
	together := map[bool]int{}
	for _, m := range w.s.Migrations {
		switched := slices.ContainsFunc(m.Entered, func(e fleet.Entered) bool { return e.Phase == fleet.Switching })
		together[switched]++
	}
	if len(together) != 1 {
		t.Errorf("some switched and some did not: %v", together)
	}
	w.exited[j] = true
	w.answerAll()
	if w.s.Jobs[j].State != fleet.JobEnded || w.s.Jobs[j].Result != fleet.JobFinished {
		t.Errorf("job: %+v", w.s.Jobs[j])
	}
}

// fault answers orders up to verb, and makes that one fail, or succeed.
func (w *world) fault(verb fleet.Verb, how string) {
	for range 100 {
		i := slices.IndexFunc(w.wire, func(o fleet.Order) bool { return o.Migration != "" })
		if i < 0 {
			w.t.Fatalf("no order to %s came", verb)
		}
		o := w.wire[i]
		if o.Verb != verb {
			w.answer(i)
			continue
		}
		switch how {
		case "":
			w.answer(i)
		case "failed":
			w.refused[o] = true
			w.answer(i)
		case "before", "after":
			if how == "after" {
				w.carry(o)
			}
			w.cut(o.Host)
			w.tick(40 * time.Second)
			w.reconnect(o.Host)
		case "restart":
			w.carry(o)
			w.cut(o.Host)
			w.tick(5 * time.Second)
			w.reconnect(o.Host)
		}
		return
	}
}

// TestSourceLosesAGuestThatSwitches: it goes on at its target if it has arrived
// completely, and is lost otherwise.
func TestSourceLosesAGuestThatSwitches(t *testing.T) {
	for _, arrived := range []bool{true, false} {
		w, j := running(t, 1, "host1", "host2")
		w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0"})
		switching := func() int {
			return slices.IndexFunc(w.wire, func(o fleet.Order) bool { return o.Verb == fleet.Switch })
		}
		for i := 0; switching() < 0; i++ {
			if i > 100 {
				t.Fatalf("it never switches: %v", w.wire)
			}
			if !w.answer(0) {
				w.wire = append(w.wire[1:], w.wire[0])
			}
		}
		if arrived {
			w.carry(w.wire[switching()]) // its answer is lost with the guest
		}
		delete(w.guests["host1"], "j1g0")
		w.answer(switching())
		w.minute()
		m, job := w.s.Migrations["m1.j1g0"], w.s.Jobs[j]
		if arrived && (m.Phase != fleet.Finished || w.guests["host2"]["j1g0"] != fleet.Running || job.State != fleet.JobRunning) {
			t.Errorf("whole: %+v %+v", m, job)
		}
		if !arrived && (m.Phase != fleet.Lost || job.Result != fleet.JobFailed) {
			t.Errorf("not whole: %+v %+v", m, job)
		}
	}
}

// minute advances time by a minute in which all orders are answered at once.
func (w *world) minute() {
	for range 60 {
		w.answerAll()
		w.tick(time.Second)
	}
}

func TestRefusedOrderIsTriedAgainAfterAPause(t *testing.T) {
	w, _ := running(t, 1, "host1", "host2")
	w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0"})
	w.fault(fleet.Activate, "failed")
	if slices.ContainsFunc(w.wire, func(o fleet.Order) bool { return o.Verb == fleet.Activate }) {
		t.Fatal("tried again at once")
	}
	w.tick(2 * time.Second)
	w.answerAll()
	if m := w.s.Migrations["m1.j1g0"]; m.Phase != fleet.Finished {
		t.Errorf("migration: %+v", m)
	}
}

func TestDrainWithNowhereToGo(t *testing.T) {
	w, _ := running(t, 1, "host1")
	a := w.must(fleet.Request{Verb: fleet.Drain, Host: "host1"})
	if len(a.Moves) != 0 || len(a.Notes) != 1 || !strings.Contains(a.Notes[0], "j1g0 stays for now, no host can take it") {
		t.Fatalf("answer: %+v", a)
	}
	w.tick(5 * time.Second)
	w.saw["host2"] = map[fleet.GuestID]uint64{}
	w.guests["host2"], w.whole["host2"] = map[fleet.GuestID]fleet.RunState{}, map[fleet.GuestID]bool{}
	w.observe(fleet.Observation{Called: "host2"})
	h := w.s.Hosts["host2"]
	h.Facts = w.s.Hosts["host1"].Facts
	w.s.Hosts["host2"] = h
	w.tick(2 * time.Second)
	w.answerAll()
	if g := w.s.Guests["j1g0"]; g.Home != "host2" {
		t.Errorf("guest: %+v", g)
	}
}

// A failed move is retried after growing pauses.
func TestDrainBacksOff(t *testing.T) {
	w, _ := running(t, 1, "host1", "host2")
	w.must(fleet.Request{Verb: fleet.Drain, Host: w.s.Guests["j1g0"].Home})
	for i, pause := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute} {
		w.fault(fleet.Receive, "failed")
		w.answerAll()
		g := w.s.Guests["j1g0"]
		if g.Aborts != i+1 || !g.RetryAt.Equal(w.now.Add(pause)) {
			t.Fatalf("after %d: %+v", i+1, g)
		}
		w.tick(pause - 2*time.Second)
		if len(w.s.Moves) != i+1 {
			t.Fatal("tried again too early")
		}
		w.tick(3 * time.Second)
	}
}

func TestCancelInEveryPhaseOfAMove(t *testing.T) {
	for _, verb := range []fleet.Verb{fleet.Receive, fleet.Copy, fleet.Switch, fleet.Activate, fleet.Retire} {
		t.Run(string(verb), func(t *testing.T) {
			w, j := running(t, 2, "host1", "host2", "host3")
			w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host3"})
			for w.wire[slices.IndexFunc(w.wire, func(o fleet.Order) bool { return o.Migration != "" })].Verb != verb {
				w.answer(slices.IndexFunc(w.wire, func(o fleet.Order) bool { return o.Migration != "" }))
			}
			w.must(fleet.Request{Verb: fleet.Cancel, Job: j})
			w.must(fleet.Request{Verb: fleet.Cancel, Job: j})
			w.answerAll()
			if job := w.s.Jobs[j]; job.State != fleet.JobEnded || job.Result != fleet.JobCancelled {
				t.Errorf("job: %+v", job)
			}
			for id, here := range w.guests {
				if len(here) != 0 {
					t.Errorf("%s still has %v", id, here)
				}
			}
		})
	}
}

// A target that never answers must not keep a cancelled job alive.
func TestCancelWhenTheTargetIsGoneForGood(t *testing.T) {
	w, j := running(t, 1, "host1", "host2")
	w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0"})
	for !slices.ContainsFunc(w.wire, func(o fleet.Order) bool { return o.Verb == fleet.Activate }) {
		w.answer(slices.IndexFunc(w.wire, func(o fleet.Order) bool { return o.Migration != "" }))
	}
	w.lease("host1", 0)
	w.lease("host2", 0)
	w.cut(w.s.Migrations["m1.j1g0"].To)
	w.tick(5 * time.Minute)
	if w.s.Jobs[j].State != fleet.JobRunning {
		t.Fatal("given up without being asked")
	}
	w.must(fleet.Request{Verb: fleet.Cancel, Job: j})
	w.answerAll()
	if w.s.Jobs[j].State != fleet.JobEnded {
		t.Errorf("job: %+v", w.s.Jobs[j])
	}
}

func TestGuestThatDiesFailsTheJob(t *testing.T) {
	w, j := running(t, 3, "host1", "host2")
	delete(w.guests[w.s.Guests["j1g1"].Home], "j1g1")
	w.answerAll()
	if job := w.s.Jobs[j]; job.State != fleet.JobEnded || job.Result != fleet.JobFailed || job.Cause != "guest j1g1 ended: it is not here" {
		t.Errorf("job: %+v", job)
	}
}

// A long silence of a host without a lease loses nothing.
func TestSilentHostKeepsItsGuests(t *testing.T) {
	w, j := running(t, 2, "host1", "host2")
	w.lease("host1", 0)
	w.cut("host1")
	w.tick(10 * time.Minute)
	if w.s.Jobs[j].State != fleet.JobRunning {
		t.Fatalf("job: %+v", w.s.Jobs[j])
	}
	if _, err := w.ask(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0"}); w.s.Guests["j1g0"].Home == "host1" && err == nil {
		t.Error("a guest of a silent host began to move")
	}
	w.reconnect("host1")
	w.exited[j] = true
	w.answerAll()
	if w.s.Jobs[j].State != fleet.JobEnded {
		t.Errorf("job: %+v", w.s.Jobs[j])
	}
}

// A standing order that was answered with unknown is sent again. Otherwise the program's
// end would never be reported.
func TestStandingOrdersAreSentAgain(t *testing.T) {
	w, _ := running(t, 1, "host1")
	for _, o := range Pending(w.s) {
		if o.Verb != fleet.Run && o.Verb != fleet.Watch {
			t.Fatalf("waits for %+v", o)
		}
		if _, err := w.step(fleet.Report{At: w.now, Order: o, Outcome: fleet.Unknown}); err != nil {
			t.Fatal(err)
		}
	}
	w.log = nil
	w.tick(slowest * time.Second)
	sent := map[fleet.Verb]bool{}
	for _, o := range w.log {
		sent[o.Verb] = sent[o.Verb] || o.Attempt == 1
	}
	if !sent[fleet.Run] || !sent[fleet.Watch] {
		t.Errorf("sent again: %v", sent)
	}
}

// A restarted controller gives agents time to connect before orders count as unknown, and
// keeps their addresses until then.
func TestRestartedControllerWaitsForAgents(t *testing.T) {
	w, _ := running(t, 2, "host1", "host2", "host3")
	w.tick(time.Second)
	w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host3"})
	w.answer(slices.IndexFunc(w.wire, func(o fleet.Order) bool { return o.Verb == fleet.Receive }))
	w.now = w.now.Add(time.Hour)
	for id, h := range w.s.Hosts {
		w.cut(id)
		h.Facts = fleet.Facts{}
		w.s.Hosts[id] = h
	}
	w.s.LedSince = w.now
	w.tick(14 * time.Second)
	if m := w.s.Migrations["m1.j1g0"]; m.Phase != fleet.Copying {
		t.Fatalf("migration: %+v", m)
	}
	for _, e := range desired.Wanted(w.s, "host1").Networks[0].Endpoints {
		if e.VTEP == "" {
			t.Errorf("the address of %s was forgotten", e.Host)
		}
	}
	w.tick(5 * time.Second)
	if m := w.s.Migrations["m1.j1g0"]; m.Phase != fleet.Cancelling {
		t.Fatalf("migration: %+v", m)
	}
}

func TestStuckOrdersBecomeUnknown(t *testing.T) {
	w := newWorld(t, "host1")
	j := w.must(submission(1)).Job
	for range 12 { // it is tried again from the beginning, and there is no other host
		w.wire = nil
		w.tick(fleet.Start.Patience("", 0))
	}
	w.answerAll()
	if job := w.s.Jobs[j]; job.State != fleet.JobEnded || job.Result != fleet.JobFailed || !strings.Contains(job.Cause, "host1 did not answer the order to start within 30m30s") {
		t.Errorf("job: %+v", job)
	}
}

// TestAllIsSentInItsTime: in stop-and-copy the switch may take as long as the whole copy;
// after a copy it is asked again sooner.
func TestAllIsSentInItsTime(t *testing.T) {
	for mode, tries := range map[fleet.Mode]bool{fleet.StopAndCopy: false, fleet.PreCopy: true} {
		w, _ := running(t, 1, "host1", "host2")
		w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", Limits: fleet.Limits{Mode: mode}})
		w.fault(fleet.Copy, "")
		w.wire = nil
		w.tick(10 * fleet.Switch.Patience("", 0))
		if m := w.s.Migrations["m1.j1g0"]; m.Phase != fleet.Switching || (m.Attempt > 0) != tries {
			t.Errorf("%s: %+v", mode, m)
		}
	}
}

// Guests and moves of only so many ended jobs are kept, and of each user only so many ended jobs.
func TestNoMoreThanSoManyEndedJobs(t *testing.T) {
	s := fleet.NewSnapshot()
	s.At = t0
	ended := func(id string, uid uint32, i int) {
		s.Jobs[fleet.JobID(id)] = fleet.Job{ID: fleet.JobID(id), State: fleet.JobEnded, Ended: t0.Add(time.Duration(i) * time.Second), Spec: fleet.JobSpec{UID: uid, Guests: 1}}
	}
	for i := range mostGuests + 5 {
		ended(fmt.Sprintf("j%d", i), 1, i)
	}
	s.Migrations["m1.j0g0"] = fleet.Migration{ID: "m1.j0g0", Move: "m1", Job: "j0", Phase: fleet.Finished}
	s.Moves["m1"] = fleet.Move{ID: "m1", Migrations: []fleet.MigrationID{"m1.j0g0"}, Ended: t0}
	p := &Planner{KeepJobs: 30 * 24 * time.Hour}
	step := func(after time.Duration) fleet.Changeset {
		t.Helper()
		d, err := p.Step(s, fleet.Tick{At: t0.Add(after)})
		if err != nil {
			t.Fatal(err)
		}
		s = s.Apply(d.Change, s.Revision+1)
		return d.Change
	}
	c := step(10 * time.Minute)
	if len(c.GoneJobs) != 0 || len(c.Jobs) != 5 || !c.Jobs[0].Alone || len(c.GoneMoves) != 1 || len(c.GoneMigrations) != 1 || len(c.GoneGuests) != 5 {
		t.Errorf("%+v", c)
	}
	if c = step(11 * time.Minute); !c.Empty() {
		t.Errorf("again: %+v", c)
	}
	if c = step(2 * time.Hour); len(c.GoneGuests) != mostGuests || len(c.GoneJobs) != 0 {
		t.Errorf("after two hours: %+v", c)
	}
	for i := range 1000 + 5 {
		ended(fmt.Sprintf("k%d", i), 2, i)
	}
	c = step(2 * time.Hour)
	if !reflect.DeepEqual(c.GoneJobs, []fleet.JobID{"k0", "k1", "k2", "k3", "k4"}) {
		t.Errorf("of one user with many jobs %v are forgotten", c.GoneJobs)
	}
	if c = step(p.KeepJobs + time.Second); !reflect.DeepEqual(c.GoneJobs, []fleet.JobID{"j0"}) {
		t.Errorf("after the time for which they are kept %v are forgotten", c.GoneJobs)
	}
}

// An ended job is removed by its user, or to make room, with all that belongs to it. One that
// runs, or begins again, is not.
func TestRemoveJob(t *testing.T) {
	w, j := running(t, 2, "host1", "host2", "host3")
	remove := fleet.Request{Verb: fleet.RemoveJob, Job: j, By: fleet.Caller{UID: w.s.Jobs[j].Spec.UID}}
	if _, err := w.ask(remove); err == nil || !strings.Contains(err.Error(), "`pagurus cancel j1`") {
		t.Errorf("a job that runs: %v", err)
	}
	crowding := fleet.Observation{At: w.now, Crowding: []fleet.JobID{j, "none"}}
	if d, err := (&Planner{}).Step(w.s, crowding); err != nil || !d.Change.Empty() {
		t.Errorf("a job that runs was removed to make room: %+v, %v", d.Change, err)
	}
	w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host3"})
	w.answerAll()
	w.exited[j] = true
	w.answerAll()
	stranger := remove
	stranger.By.UID++
	if _, err := (&Planner{}).Step(w.s, stranger); err == nil || !strings.Contains(err.Error(), "belongs to another user") {
		t.Errorf("a stranger: %v", err)
	}
	if d, err := (&Planner{}).Step(w.s, crowding); err != nil || !reflect.DeepEqual(d.Change.GoneJobs, []fleet.JobID{j}) || len(d.Change.GoneGuests) != 2 {
		t.Errorf("to make room: %+v, %v", d.Change, err)
	}
	w.must(remove)
	if len(w.s.Jobs)+len(w.s.Guests)+len(w.s.Moves) != 0 {
		t.Errorf("left: %+v", w.s)
	}
	if _, err := w.ask(remove); err == nil || !strings.Contains(err.Error(), "`pagurus job ls`") {
		t.Errorf("twice: %v", err)
	}
}

// Ports have the guest's kind; a virtual machine's is omitted for older agents.
func TestPortsAreOfTheirGuestsKind(t *testing.T) {
	w, _ := running(t, 2, "host1", "host2")
	for kind, port := range map[fleet.Kind]fleet.Kind{fleet.VM: "", fleet.Container: fleet.Container} {
		seen := 0
		for id, g := range w.s.Guests {
			g.Kind = kind
			w.s.Guests[id] = g
		}
		for host := range w.s.Hosts {
			for _, n := range desired.Wanted(w.s, host).Networks {
				for _, p := range n.Ports {
					if seen++; p.Kind != port {
						t.Errorf("a %s's port is %+v", kind, p)
					}
				}
			}
		}
		if seen != 2 {
			t.Errorf("%d ports for 2 guests", seen)
		}
	}
}

func TestWantedFollowsAMove(t *testing.T) {
	w, _ := running(t, 2, "host1", "host2", "host3")
	from := w.s.Guests["j1g1"].Home
	w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g1", To: "host3"})
	type seen struct {
		phase   fleet.Phase
		carrier fleet.HostID
		ports   bool
	}
	var got []seen
	for {
		g := w.s.Guests["j1g1"]
		if g.Migration == "" {
			break
		}
		n := desired.Wanted(w.s, "host3").Networks[0]
		got = append(got, seen{w.s.Migrations[g.Migration].Phase, n.Endpoints[1].Host, len(n.Ports) == 1 && len(desired.Wanted(w.s, from).Guests) > 0})
		w.answer(slices.IndexFunc(w.wire, func(o fleet.Order) bool { return o.Migration != "" }))
	}
	want := []seen{{fleet.Preparing, from, true}, {fleet.Copying, from, true}, {fleet.Switching, from, true},
		{fleet.Activating, "host3", true}, {fleet.Retiring, "host3", true}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
	n := desired.Wanted(w.s, w.s.Jobs["j1"].ShareHost).Networks[0]
	if n.Share == nil || n.Share.Export != "/home/me" || len(n.Endpoints) != 3 || n.Endpoints[2].Host != w.s.Jobs["j1"].ShareHost {
		t.Errorf("network: %+v", n)
	}
	if task := Task(w.s, Pending(w.s)[0]); task.Guest.ID == "" || task.Job.ID != "j1" {
		t.Errorf("task: %+v", task)
	}
}

// Reports that arrive together have the same effect as one by one.
func TestReportsTogether(t *testing.T) {
	one, all := newWorld(t, "host1", "host2", "host3"), newWorld(t, "host1", "host2", "host3")
	for _, w := range []*world{one, all} {
		w.must(submission(3))
	}
	turn := func() {
		t.Helper()
		orders := slices.Clone(one.wire)
		for range orders {
			one.answer(0)
		}
		all.together(orders)
		if !reflect.DeepEqual(one.s.Guests, all.s.Guests) || !reflect.DeepEqual(one.s.Jobs, all.s.Jobs) || !reflect.DeepEqual(one.s.Migrations, all.s.Migrations) {
			t.Fatalf("one by one:\n%+v\n%+v\n%+v\ntogether:\n%+v\n%+v\n%+v", one.s.Jobs, one.s.Guests, one.s.Migrations, all.s.Jobs, all.s.Guests, all.s.Migrations)
		}
	}
	turn() // they start
	if all.s.Jobs["j1"].State != fleet.JobRunning {
		t.Fatalf("%+v", all.s.Jobs)
	}
	for _, w := range []*world{one, all} {
		w.must(fleet.Request{Verb: fleet.Cancel, Job: "j1", Grace: atOnce()})
		w.wire = slices.DeleteFunc(w.wire, func(o fleet.Order) bool { return o.Verb != fleet.Stop })
	}
	turn() // they stop
	if all.s.Jobs["j1"].State != fleet.JobEnded {
		t.Fatalf("%+v", all.s.Jobs)
	}
	// One invalid report fails all of them; the sender then sends them one by one.
	one.must(submission(2))
	if _, err := one.p.Step(one.s, fleet.Reports{{Order: one.wire[0], Outcome: fleet.Done}, {Order: one.wire[1], Outcome: "perhaps"}}); err == nil {
		t.Error("nonsense was taken for a report")
	}
}
