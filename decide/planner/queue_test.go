package planner

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pagurus/decide/state"
	"pagurus/fleet"
)

// asks submits a job of whole hosts that may last a time, and returns its ID.
func (w *world) asks(hosts int, limit time.Duration) fleet.JobID {
	w.t.Helper()
	r := submission(hosts)
	r.Spec.Need.MemoryBytes, r.Spec.Time = 2<<30, limit
	return w.must(r).Job
}

func (w *world) state(want map[fleet.JobID]fleet.JobState) {
	w.t.Helper()
	for id, s := range want {
		if got := w.s.Jobs[id].State; got != s {
			w.t.Fatalf("%s is %s, should be %s: %+v", id, got, s, w.s.Jobs)
		}
	}
}

// First come, first served; who has a limit passes where it delays nobody.
func TestQueueBackfills(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	long := w.asks(2, time.Hour)
	w.answerAll()
	all := w.asks(3, time.Hour)
	short, slow, endless := w.asks(1, 10*time.Minute), w.asks(1, 2*time.Hour), w.asks(1, 0)
	w.state(map[fleet.JobID]fleet.JobState{long: fleet.JobRunning, all: fleet.JobPending, short: fleet.JobStarting, slow: fleet.JobPending, endless: fleet.JobPending})
	if why := w.s.Jobs[all].Reason; why != "there is no room for guest 2 of 3 (2048 MiB each)" {
		t.Errorf("reason: %s", why)
	}
	w.answerAll()
	for _, id := range []fleet.JobID{short, long} {
		w.exited[id] = true
		w.answerAll()
	}
	w.tick(time.Second)
	w.state(map[fleet.JobID]fleet.JobState{all: fleet.JobRunning, slow: fleet.JobPending, endless: fleet.JobPending})
	w.must(fleet.Request{Verb: fleet.Cancel, Job: endless})
	if j := w.s.Jobs[endless]; j.State != fleet.JobEnded || j.Result != fleet.JobCancelled || j.Reason != "" {
		t.Errorf("cancelled: %+v", j)
	}
	w.must(fleet.Request{Verb: fleet.RemoveJob, Job: endless})
	w.answerAll()
	w.exited[all] = true
	w.answerAll()
	w.state(map[fleet.JobID]fleet.JobState{slow: fleet.JobRunning})
}

// A job that waits says why, what is before it, and when it would start.
func TestExplainWaiting(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	w.asks(2, time.Hour)
	w.answerAll()
	w.asks(1, time.Hour)
	w.asks(1, 0)
	lines, err := w.p.Explain(w.s, Subject{Job: "j3"})
	said := strings.Join(lines, "\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"behind 1 waiting job", "There is no room for guest 1 of 1 (2048 MiB each).", "host1, host2: has 0 MiB", "It starts in 1h1m10s at the latest"} {
		if !strings.Contains(said, part) {
			t.Errorf("%q is not in: %s", part, said)
		}
	}
}

// A program that runs for too long is told to end.
func TestTimeIsOver(t *testing.T) {
	w := newWorld(t, "host1")
	id := w.asks(1, time.Hour)
	w.answerAll()
	w.wire = nil
	w.tick(time.Hour - time.Second)
	w.state(map[fleet.JobID]fleet.JobState{id: fleet.JobRunning})
	w.tick(2 * time.Second)
	if !slices.ContainsFunc(w.wire, func(o fleet.Order) bool { return o.Verb == fleet.End && o.Job == id }) {
		t.Fatalf("orders: %v", w.wire)
	}
	w.answerAll()
	if j := w.s.Jobs[id]; j.State != fleet.JobEnded || j.Result != fleet.JobCancelled || j.Cause != "the time that it was given is over (run --time 1h)" {
		t.Errorf("job: %+v", j)
	}
}

// What can never fit is refused, with what would.
func TestNeverFits(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	for want, change := range map[string]func(*fleet.JobSpec){
		"9 ranks on 9 guests of 512 MiB never fit; the largest that would is 8 guests of 512 MiB or 9 guests of 409 MiB: ask for it with --guests and --mem": func(s *fleet.JobSpec) {},
		"9 ranks on 3 guests of 2048 MiB never fit; the largest that would is 2 guests of 2048 MiB or 3 guests of 1024 MiB: ask for it with --guests and --mem": func(s *fleet.JobSpec) {
			s.Guests, s.Need.MemoryBytes = 3, 2<<30
		},
		"9 ranks on 9 guests of 512 MiB never fit, because no host can run them; change what keeps the hosts from it (host1, host2: cannot run guests of kind container)": func(s *fleet.JobSpec) {
			s.Kind = fleet.Container
		},
	} {
		w.must(fleet.Request{Verb: fleet.Drain, Host: "host2"}) // which may be over tomorrow
		r := submission(9)
		change(r.Spec)
		if _, err := w.ask(r); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	if id := w.asks(2, 0); w.s.Jobs[id].State != fleet.JobPending {
		t.Errorf("it fits when host2 no longer drains: %+v", w.s.Jobs[id])
	}
	w.must(fleet.Request{Verb: fleet.Undrain, Host: "host2"})
	w.tick(time.Second)
	w.state(map[fleet.JobID]fleet.JobState{"j1": fleet.JobStarting})
}

// A user cannot fill the queue.
func TestQueueOfOneUser(t *testing.T) {
	w := newWorld(t, "host1")
	w.asks(1, 0)
	r := submission(1)
	for i := range 2000 {
		j := fleet.Job{ID: fleet.JobID(fmt.Sprint("j", 10+i)), State: fleet.JobPending, Spec: *r.Spec, Submitted: w.now}
		w.s.Jobs[j.ID] = j
	}
	w.s.Cluster.NextJob = 5000
	if _, err := w.p.Step(w.s, r); err == nil || !strings.Contains(err.Error(), "2000 of your jobs wait for room") {
		t.Errorf("%v", err)
	}
	r.Spec.UID++
	r.By.UID++
	if _, err := w.p.Step(w.s, r); err != nil {
		t.Errorf("another user: %v", err)
	}
}

// A start that fails because of a host is not the job's failure.
func TestStartsElsewhere(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	id := w.asks(1, 0)
	home := w.s.Guests["j1g0"].Home
	w.cut(home)
	w.tick(3 * time.Minute)
	w.answerAll()
	if j, g := w.s.Jobs[id], w.s.Guests["j1g0"]; j.State != fleet.JobRunning || j.Incarnation != 1 || g.Home == home || g.Gen != 2 || len(j.Avoid) != 0 {
		t.Errorf("%+v %+v", j, g)
	}
}

// A job whose files' host is not heard waits for it.
func TestWaitsForItsFiles(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	w.cut("host1")
	w.cut("host2")
	w.tick(time.Minute)
	a, err := w.ask(submission(1))
	if err != nil {
		t.Fatal(err)
	}
	want := "host1 or host2, which serves /home/me to the guests, is not heard"
	if j := w.s.Jobs[a.Job]; j.State != fleet.JobPending || j.Reason != want {
		t.Errorf("%s %q", j.State, j.Reason)
	}
	if lines, err := w.p.Explain(w.s, Subject{Job: a.Job}); err != nil || !strings.Contains(strings.Join(lines, " "), "H"+want[1:]) {
		t.Error(lines, err)
	}
	w.reconnect("host1")
	w.tick(time.Second)
	w.answerAll()
	if j := w.s.Jobs[a.Job]; j.State != fleet.JobRunning {
		t.Errorf("%s %q", j.State, j.Reason)
	}
}

// killAtStart reports that every guest that is to start is killed.
func (w *world) killAtStart() (n int) {
	w.t.Helper()
	wire := slices.Clone(w.wire)
	w.wire = slices.DeleteFunc(w.wire, func(o fleet.Order) bool { return o.Verb == fleet.Start })
	for _, o := range wire {
		if o.Verb == fleet.Start {
			n++
			r := fleet.Report{At: w.now, Order: o, Outcome: fleet.Failed, AtFault: true, Cause: "it was killed", Remains: &fleet.Remains{Killed: true}}
			if _, err := w.step(r); err != nil {
				w.t.Fatalf("%v", err)
			}
		}
	}
	return n
}

// A guest that is killed while it starts does not fail its job: that starts elsewhere, and where there is no other host or no room on
// others, on the same host, a few times.
func TestKilledAtStart(t *testing.T) {
	for _, c := range []struct {
		hosts []fleet.HostID
		full  bool // others have no room
		waits time.Duration
	}{{hosts: []fleet.HostID{"host1", "host2"}}, {hosts: []fleet.HostID{"host1"}}, {[]fleet.HostID{"host1", "host2"}, true, avoids}} {
		w := newWorld(t, c.hosts...)
		if c.full {
			r := submission(1)
			r.Spec.Need.MemoryBytes, r.Spec.On = 2<<30, []fleet.HostID{"host2"}
			w.must(r)
			w.answerAll()
		}
		id := w.asks(1, 0)
		guest := fleet.GuestID(id) + "g0"
		home := w.s.Guests[guest].Home
		if n := w.killAtStart(); n != 1 {
			t.Fatalf("%d guests were to start: %+v", n, w.s.Jobs)
		}
		if c.waits > 0 {
			w.tick(c.waits / 2)
			w.state(map[fleet.JobID]fleet.JobState{id: fleet.JobPending})
		}
		w.tick(c.waits + 2*time.Second)
		w.answerAll()
		j, g := w.s.Jobs[id], w.s.Guests[guest]
		if other := len(c.hosts) > 1 && !c.full; j.State != fleet.JobRunning || j.Incarnation != 1 || j.Restarted != 0 || (g.Home != home) != other || len(j.Avoid) != 0 {
			t.Errorf("%v: %+v %+v", c, j, g)
		}
	}
}

// One whose guests are killed whenever they start fails in the end, also where it may begin again.
func TestKilledAtEachStart(t *testing.T) {
	for _, restarts := range []int{0, 2} {
		w := newWorld(t, "host1", "host2")
		r := submission(1)
		r.Spec.Restarts = restarts
		id := w.must(r).Job
		n := 0
		for range 20 {
			n += w.killAtStart()
			w.tick(2 * time.Second)
		}
		if j := w.s.Jobs[id]; j.State != fleet.JobEnded || j.Result != fleet.JobFailed || n != 1+3+restarts {
			t.Errorf("%d starts: %+v", n, j)
		}
	}
}

// A controller that has just begun to lead knows neither hosts' machines nor what they have.
func TestWaitsForHostsToBeHeard(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	for id, h := range w.s.Hosts {
		w.cut(id)
		h.Facts = fleet.Facts{}
		w.s.Hosts[id] = h
	}
	if _, err := w.ask(submission(1)); err != nil {
		t.Fatal(err)
	}
	if j := w.s.Jobs["j1"]; j.State != fleet.JobPending || !strings.Contains(j.Reason, "start one here") {
		t.Errorf("%s %q", j.State, j.Reason)
	}
}

// A start that fails for the job's own reason fails at once.
func TestStartFailsOfItself(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	id := w.asks(1, 0)
	o := w.wire[0]
	if _, err := w.step(fleet.Report{At: w.now, Order: o, Outcome: fleet.Failed, Cause: "there is no such image"}); err != nil {
		t.Fatal(err)
	}
	if j := w.s.Jobs[id]; j.State != fleet.JobEnded || j.Result != fleet.JobFailed || j.Incarnation != 0 {
		t.Errorf("%+v", j)
	}
}

// With restarts a job begins again after a loss that is not its fault, as often as was said.
func TestRestarts(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	r := submission(2)
	r.Spec.Restarts = 1
	id := w.must(r).Job
	for n := range 2 {
		w.answerAll()
		w.state(map[fleet.JobID]fleet.JobState{id: fleet.JobRunning})
		old := w.s.Jobs[id]
		w.die("j1g1")
		w.answerAll()
		w.tick(2 * time.Second)
		j := w.s.Jobs[id]
		if n == 0 && (j.State != fleet.JobRunning || j.Incarnation != 1 || j.Restarted != 1 || j.Subnet == old.Subnet || w.s.Guests["j1g0"].Gen != 2 || j.Result != "") {
			t.Fatalf("%+v %+v", j, w.s.Guests)
		}
		if n == 1 && (j.State != fleet.JobEnded || j.Result != fleet.JobFailed || j.Incarnation != 1) {
			t.Fatalf("%+v", j)
		}
	}
}

// A program that fails because a guest died, and is heard first, begins again; one that fails by itself has finished, after a while.
func TestProgramIsHeardBeforeTheLoss(t *testing.T) {
	for _, loses := range []bool{true, false} {
		w := newWorld(t, "host1", "host2")
		r := submission(2)
		r.Spec.Restarts = 1
		id := w.must(r).Job
		w.answerAll()
		w.exited[id] = true
		w.answerAll()
		w.state(map[fleet.JobID]fleet.JobState{id: fleet.JobRunning})
		w.exited[id] = false
		if loses {
			w.die("j1g1")
		}
		for range 10 {
			w.answerAll()
			w.tick(time.Second)
		}
		switch j := w.s.Jobs[id]; {
		case loses && (j.State != fleet.JobRunning || j.Incarnation != 1 || j.Exit != nil || !j.Computes()):
			t.Errorf("after a loss: %+v", j)
		case !loses && (j.State != fleet.JobEnded || j.Result != fleet.JobFinished || j.Exit == nil || j.Exit.Code != 7 || j.Incarnation != 0):
			t.Errorf("by itself: %+v", j)
		}
	}
}

// A program ends while a host with a guest of its job is silent, which then is gone: whatever its exit code is, the job begins again.
func TestProgramEndsWhileAHostIsSilent(t *testing.T) {
	for _, code := range []int{0, 7} {
		w := newWorld(t, "host1", "host2")
		r := submission(2)
		r.Spec.Restarts = 1
		id := w.must(r).Job
		w.answerAll()
		other := w.s.Guests["j1g1"].Home
		if other == w.s.Guests["j1g0"].Home {
			t.Fatal("both guests are on one host")
		}
		w.cut(other)
		w.tick(20 * time.Second)
		run := w.wire[slices.IndexFunc(w.wire, func(o fleet.Order) bool { return o.Verb == fleet.Run })]
		w.wire = slices.DeleteFunc(w.wire, func(o fleet.Order) bool { return o == run })
		_, _ = w.step(fleet.Report{At: w.now, Order: run, Outcome: fleet.Done, Exit: &fleet.Exit{Code: code}})
		w.apply()
		for range 20 {
			w.answerAll()
			w.tick(time.Second)
		}
		if j := w.s.Jobs[id]; j.State == fleet.JobEnded {
			t.Errorf("exit code %d: it has ended before the host is gone: %+v", code, j)
		}
		for range 60 {
			w.answerAll()
			w.tick(time.Second)
		}
		if j := w.s.Jobs[id]; j.State != fleet.JobRunning || j.Incarnation != 1 || !j.Computes() {
			t.Errorf("exit code %d: %+v", code, j)
		}
	}
}

// A host that still has a guest of an earlier incarnation gets none of the same name.
func TestOldGuestIsDestroyedFirst(t *testing.T) {
	w := newWorld(t, "host1")
	r := submission(1)
	r.Spec.Restarts = 1
	w.must(r)
	w.answerAll()
	g := w.s.Guests["j1g0"]
	o := fleet.Order{Verb: fleet.Watch, Host: "host1", Job: "j1", Guest: g.ID, Gen: g.Gen, Born: g.Born}
	if _, err := w.step(fleet.Report{At: w.now, Order: o, Outcome: fleet.Failed}); err != nil {
		t.Fatal(err)
	}
	w.tick(time.Second)
	w.state(map[fleet.JobID]fleet.JobState{"j1": fleet.JobPending})
	w.tick(time.Second) // it has been destroyed, since it is not wanted
	w.state(map[fleet.JobID]fleet.JobState{"j1": fleet.JobStarting})
}

// What waited when a backup was made may have begun since, so it does not begin.
func TestRestoredQueue(t *testing.T) {
	w := newWorld(t, "host1")
	w.asks(1, 0)
	id := w.asks(1, 0)
	w.restore(w.s)
	if j := w.s.Jobs[id]; j.State != fleet.JobEnded || !strings.Contains(j.Cause, "it may have begun since") {
		t.Errorf("%+v", j)
	}
}

// A report about a guest of an earlier incarnation changes nothing.
func TestOldIncarnationIsNotHeard(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	r := submission(1)
	r.Spec.Restarts = 1
	w.must(r)
	w.answerAll()
	i := slices.IndexFunc(w.wire, func(o fleet.Order) bool { return o.Verb == fleet.Run })
	old := w.wire[i]
	w.die("j1g0")
	w.answerAll()
	w.tick(2 * time.Second)
	w.answerAll()
	d, err := w.p.Step(w.s, fleet.Report{At: w.now, Order: old, Outcome: fleet.Done, Exit: &fleet.Exit{}})
	if err != nil || !d.Change.Empty() || w.s.Jobs["j1"].Incarnation != 1 {
		t.Errorf("%+v %v", d, err)
	}
}

// Whatever waits: what starts takes nothing from a reservation of a job before it, and nobody waits who fits where
// nobody before needs it.
func TestQueueIsFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, "host1", "host2", "host3")
		for range rapid.IntRange(1, 8).Draw(t, "jobs") {
			r := submission(rapid.IntRange(1, 3).Draw(t, "guests"))
			r.Spec.Need.MemoryBytes = 1 << 30 * int64(rapid.IntRange(1, 2).Draw(t, "GiB"))
			r.Spec.Time = time.Duration(rapid.IntRange(0, 3).Draw(t, "hours")) * time.Hour
			if rapid.IntRange(0, 3).Draw(t, "on") == 0 {
				r.Spec.On = []fleet.HostID{"host1"}
				r.Spec.Guests = 1
				r.Spec.Ranks = 1
			}
			w.must(r)
			w.answerAll()
		}
		for range 20 {
			w.fair(t)
			for id, j := range w.s.Jobs { // all end before their limit
				if j.State == fleet.JobRunning && rapid.Bool().Draw(t, "ends") {
					w.exited[id] = true
				}
			}
			w.tick(time.Second)
			w.answerAll()
		}
		for range 10 {
			for id := range w.s.Jobs {
				w.exited[id] = true
			}
			w.answerAll()
			w.tick(time.Second)
		}
		for _, j := range w.s.Jobs {
			if j.State != fleet.JobEnded || j.Result != fleet.JobFinished {
				t.Fatalf("%s waits for ever: %+v", j.ID, j)
			}
		}
	})
}

// fair checks that the first who waits does not fit.
func (w *world) fair(t *rapid.T) {
	l := state.NewIndex(w.s, nil)
	d := newDraft(w.p, l)
	d.at = w.now
	if l.Waiting() == 0 {
		return
	}
	first := d.Jobs.At(l.WaitingAt(0))
	if _, stuck := d.find(new(queueing), first, d.wanting(first)); stuck < 0 {
		t.Fatalf("%s waits and fits: %+v", first.ID, w.s.Jobs)
	}
	for i := range l.Waiting() { // what is known at once is what a search finds
		j := d.Jobs.At(l.WaitingAt(i))
		if _, stuck := d.find(new(queueing), j, d.wanting(j)); d.room().Full(d.wanting(j)) && stuck != 0 {
			t.Fatalf("%s has room for guests up to %d of hosts that are full", j.ID, stuck)
		}
	}
	q := d.dequeue()
	for i := range l.Waiting() {
		id := l.WaitingAt(i)
		if _, has := q.reserved[id]; !has && d.Jobs.At(id).State == fleet.JobPending {
			t.Fatalf("%s waits without a reservation", id)
		}
	}
}

// A job that goes on from a checkpoint may need a processor that no host has now. It does not keep others of its shape from
// hosts that suit them, whether they begin at their beginning or at checkpoints of their own.
func TestWhatNoHostSuitsHoldsUpNobodyElse(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	can := func(processor string) {
		for id, h := range w.s.Hosts {
			able := h.Facts.Abilities[fleet.VM]
			able.Processor = processor
			h.Facts.Abilities = map[fleet.Kind]fleet.Abilities{fleet.VM: able}
			w.s.Hosts[id] = h
		}
	}
	suspended := func(processor string) fleet.JobID {
		can(processor)
		id := w.running(2, nil)
		w.must(fleet.Request{Verb: fleet.SuspendJob, Job: id})
		w.answerAll()
		return id
	}
	rare, common := suspended("sse2 avx512"), suspended("sse2")
	w.must(fleet.Request{Verb: fleet.ResumeJob, Job: rare})
	w.must(fleet.Request{Verb: fleet.ResumeJob, Job: common})
	fresh := w.must(submission(2)).Job
	w.answerAll()
	w.tick(2 * time.Second)
	w.answerAll()
	w.state(map[fleet.JobID]fleet.JobState{rare: fleet.JobPending, common: fleet.JobRunning, fresh: fleet.JobRunning})
	can("sse2 avx512")
	w.tick(2 * time.Second)
	w.answerAll()
	w.state(map[fleet.JobID]fleet.JobState{rare: fleet.JobRunning})
}
