package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// TestStory: a job is started, a guest of it moves, the program ends.
func TestStory(t *testing.T) {
	r := newRig(t)
	agents := map[fleet.HostID]*agent{"host1": r.attach("host1"), "host2": r.attach("host2"), "host3": r.attach("host3")}
	id := r.submit(2)
	snap := r.until("the job to run", running(id))
	first := snap.Guests[fleet.GuestID(string(id)+"g0")]
	home := agents[first.Home]
	run := home.task(fleet.Run)
	if run.Job.ID != id || len(run.Have) != 2 || run.Have[fleet.Stdout] != 0 {
		t.Fatalf("%+v", run)
	}

	if _, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.Migrate, Guest: first.ID, To: first.Home}); err == nil {
		t.Error("moved to where it is")
	} else {
		r.refused(err, http.StatusUnprocessableEntity, "already")
	}
	answer, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.Migrate, Guest: first.ID})
	if err != nil || len(answer.Moves) != 1 {
		t.Fatalf("%+v, %v", answer, err)
	}
	snap = r.until("the move to end", func(s fleet.Snapshot) bool { return !s.Moves[answer.Moves[0]].Ended.IsZero() })
	now := snap.Guests[first.ID]
	if now.Home == first.Home || now.Gen <= first.Gen || now.State != fleet.GuestRunning {
		t.Fatalf("%+v after %+v", now, first)
	}
	target := agents[now.Home]
	receive := target.task(fleet.Receive)
	wantedFirst(t, target, receive)
	if c := home.task(fleet.Copy); c.Listen != "192.0.2.9:1" {
		t.Errorf("told to copy to %q", c.Listen)
	}

	traces, err := r.client.Trace(r.ctx, id)
	if err != nil || len(traces) != 2 {
		t.Errorf("%v, %v", traces, err)
	}
	if lines, err := r.client.Explain(r.ctx, wire.About{Guest: first.ID}); err != nil || len(lines) == 0 {
		t.Errorf("%v, %v", lines, err)
	}
	_, err = r.client.Explain(r.ctx, wire.About{Guest: "none"})
	r.refused(err, http.StatusUnprocessableEntity, "none")

	part := snap.Moves[answer.Moves[0]].Migrations[0]
	snap = r.until("the stall to be known", func(s fleet.Snapshot) bool { return s.Migrations[part].Stall != nil })
	if seen := snap.Migrations[part].Stall; seen.Took != 90*time.Millisecond || seen.Ranks != 2 {
		t.Errorf("%+v", seen)
	}
	_, err = r.ctl.Ask(r.ctx, fleet.Request{Verb: "record"})
	r.refused(err, http.StatusUnprocessableEntity, "there is no request")

	run = target.task(fleet.Run)
	r.speak(id, fleet.Stdout, "hello\n")
	r.speak(id, fleet.Stderr, "")
	target.report(fleet.Report{Order: run.Order, Outcome: fleet.Done, Exit: &fleet.Exit{Code: 3}})
	snap = r.until("the job to end", jobEnded(id))
	if j := snap.Jobs[id]; j.Result != fleet.JobFinished || j.Exit == nil || j.Exit.Code != 3 {
		t.Errorf("%+v", j)
	}
	if out := r.output(id, fleet.Stdout); out != "hello\n" {
		t.Errorf("%q", out)
	}
	// The ranks' traces are known after the job's end, also to the next controller.
	for range 2 {
		if traces, err := r.client.Trace(r.ctx, id); err != nil || len(traces) != 2 || traces[1].Rank != 1 || traces[1].Guest != fleet.GuestID(string(id)+"g1") {
			t.Errorf("%+v, %v", traces, err)
		}
		r.stop()
		r.start()
	}
}

// speak writes a program's output as an agent does.
func (r *rig) speak(id fleet.JobID, stream, words string) {
	r.t.Helper()
	next, err := r.client.WriteStream(r.ctx, wire.Place{Job: id, Stream: stream}, []byte(words), true)
	if err != nil || next != int64(len(words)) {
		r.t.Fatalf("%d, %v", next, err)
	}
}

func (r *rig) output(id fleet.JobID, stream string) string {
	r.t.Helper()
	var out []byte
	for {
		data, over, err := r.client.ReadStream(r.ctx, wire.Place{Job: id, Stream: stream, Offset: int64(len(out))})
		if err != nil {
			r.t.Fatal(err)
		}
		if out = append(out, data...); over {
			return string(out)
		}
	}
}

// wantedFirst: the guest is wanted on a host before the host's order comes.
func wantedFirst(t *testing.T, a *agent, task fleet.Task) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	wanted := false
	for _, d := range a.heard {
		if d.Wanted != nil {
			wanted = slices.Contains(d.Wanted.Guests, task.Order.Guest)
		}
		if d.Task != nil && d.Task.Order == task.Order {
			if !wanted {
				t.Errorf("%s came before it was wanted", task.Order.Verb)
			}
			return
		}
	}
}

// TestRestart: a restarted controller sends all pending orders to agents that come back, and
// knows the stored output.
func TestRestart(t *testing.T) {
	r := newRig(t)
	r.attach("host1")
	id := r.submit(1)
	r.until("the job to run", running(id))
	r.client.WriteStream(r.ctx, wire.Place{Job: id, Stream: fleet.Stdout}, []byte("before "), false)
	before := r.now()
	r.stop()
	r.start()
	if after := r.now(); after.Cluster != before.Cluster || len(after.Jobs) != 1 || after.LedSince.IsZero() {
		t.Fatalf("%+v after %+v", after, before)
	}
	a := r.attach("host1")
	if h := a.task(fleet.Watch); h.Guest.ID != fleet.GuestID(string(id)+"g0") {
		t.Fatalf("%+v", h)
	}
	run := a.task(fleet.Run)
	if run.Have[fleet.Stdout] != 7 {
		t.Fatalf("%+v", run.Have)
	}
	next, err := r.client.WriteStream(r.ctx, wire.Place{Job: id, Stream: fleet.Stdout, Offset: 7}, []byte("after"), true)
	if err != nil || next != 12 {
		t.Fatalf("%d, %v", next, err)
	}
	a.report(fleet.Report{Order: run.Order, Outcome: fleet.Done, Exit: &fleet.Exit{}})
	r.until("the job to end", jobEnded(id))
	if out := r.output(id, fleet.Stdout); out != "before after" {
		t.Errorf("%q", out)
	}
}

// TestAgentComesBack: pending orders are sent again, after what is wanted.
func TestAgentComesBack(t *testing.T) {
	r := newRig(t)
	a := r.attach("host1", fleet.Start)
	id := r.submit(1)
	start := a.task(fleet.Start)
	a.session.Close()
	r.until("the agent to be missed", func(s fleet.Snapshot) bool { return !s.Hosts["host1"].Facts.Connected })
	a = r.attach("host1")
	if again := a.task(fleet.Start); again.Order.Guest != start.Order.Guest {
		t.Fatalf("%+v", again)
	}
	wantedFirst(t, a, start)
	r.until("the job to run", running(id))
}

func TestTwoAgentsOfOneName(t *testing.T) {
	r := newRig(t)
	first := r.attach("host1")
	_, err := r.tryAttach(wire.Hello{Host: "host1", Facts: r.facts("host1")})
	if err == nil || !strings.Contains(err.Error(), "another agent already runs as host1") {
		t.Fatalf("got %v", err)
	}
	select {
	case <-first.closed:
		t.Fatalf("the one that was there lost its place: %v", first.over)
	default:
	}
	first.session.Close()
	r.until("the first to leave", func(s fleet.Snapshot) bool { return !s.Hosts["host1"].Facts.Connected })
	r.attach("host1")
}

func TestRefusedAgents(t *testing.T) {
	r := newRig(t)
	_, err := r.tryAttach(wire.Hello{Host: "host1", Cluster: "another", Facts: r.facts("host1")})
	if err == nil || !strings.Contains(err.Error(), "belongs to cluster another") {
		t.Errorf("got %v", err)
	}
	_, err = r.tryAttach(wire.Hello{Host: "a b/c1", Facts: r.facts("host1")})
	if err == nil || !strings.Contains(err.Error(), "--"+fleet.HostFlag) {
		t.Errorf("got %v", err)
	}
	if n := len(r.now().Hosts); n != 0 {
		t.Errorf("%d hosts joined", n)
	}
	r.attach("host1")
}

// TestSenselessAgents: each is disconnected with a reason, and all goes on.
func TestSenselessAgents(t *testing.T) {
	r := newRig(t)
	for name, up := range map[string]wire.Up{
		"another's order": {Report: &fleet.Report{Order: fleet.Order{Host: "host2", Verb: fleet.Start}, Outcome: fleet.Done}},
		"no outcome":      {Report: &fleet.Report{Order: fleet.Order{Host: "host1", Verb: fleet.Start}}},
		"a second hello":  {Hello: &wire.Hello{Host: "host2"}},
	} {
		a := r.attach("host1")
		a.session.Send(r.ctx, up)
		<-a.closed
		if a.over == nil || !strings.Contains(a.over.Error(), "ended the session:") {
			t.Errorf("%s: %v", name, a.over)
		}
		r.until("it to be gone", func(s fleet.Snapshot) bool { return !s.Hosts["host1"].Facts.Connected })
	}
	a := r.attach("host1")
	for _, odd := range []fleet.Order{
		{Host: "host1", Verb: "dance"},
		{Host: "host1", Verb: fleet.Run, Job: "j99"},
		{Host: "host1", Verb: fleet.Switch, Migration: "m9.j9g9"},
	} {
		a.report(fleet.Report{Order: odd, Outcome: fleet.Done})
	}
	a.session.Send(r.ctx, wire.Up{Reply: &wire.Reply{ID: 12345}})
	id := r.submit(1)
	r.until("the job to run", running(id))
}

// TestStoreFails: requests are answered with the reason, only stored changes are sent, and
// no report is lost.
func TestStoreFails(t *testing.T) {
	r := newRig(t)
	a := r.attach("host1", fleet.Start)
	id := r.submit(1)
	start := a.task(fleet.Start)
	r.store.set(errors.New("the disk is full: free some space"))
	_, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.Cancel, Job: id})
	r.refused(err, http.StatusInsufficientStorage, "free some space")
	_, err = r.tryAttach(wire.Hello{Host: "host2", Facts: r.facts("host2")})
	if err == nil || !strings.Contains(err.Error(), "free some space") {
		t.Errorf("a new host: %v", err)
	}
	a.report(fleet.Report{Order: start.Order, Outcome: fleet.Done})
	a.report(fleet.Report{Order: start.Order, Outcome: fleet.Done})
	r.pass(a, 1500*time.Millisecond)
	if g := r.now().Guests[start.Order.Guest]; g.State != fleet.GuestStarting {
		t.Errorf("%+v", g)
	}
	if n := a.count(func(d wire.Down) bool { return d.Task != nil && d.Task.Order.Verb == fleet.Run }); n != 0 {
		t.Error("told to run what was not stored")
	}
	r.store.set(nil)
	r.until("the job to run", running(id))
	a.task(fleet.Run)
}

// pass waits for a time in which nothing should happen.
func (r *rig) pass(a *agent, d time.Duration) {
	select {
	case <-time.After(d):
	case <-a.closed:
		r.t.Fatalf("the session ended: %v", a.over)
	}
}

// TestReportsTogether: reports that come while the store is busy are committed in one
// change.
func TestReportsTogether(t *testing.T) {
	r := newRig(t)
	r.factsEvery = time.Hour // facts would come in between
	var agents []*agent
	for _, id := range []fleet.HostID{"host1", "host2", "host3", "host4"} {
		agents = append(agents, r.attach(id, fleet.Start))
	}
	id := r.submit(4)
	var starts []fleet.Order
	for _, a := range agents {
		starts = append(starts, a.task(fleet.Start).Order)
	}
	r.store.mu.Lock()
	before, asked := r.store.commits, r.store.asked.Load()
	soon := func(what string, is func() bool) {
		t.Helper()
		for ; !is(); time.Sleep(time.Millisecond) {
			if r.ctx.Err() != nil {
				r.store.mu.Unlock()
				t.Fatal("waited in vain for ", what)
			}
		}
	}
	agents[0].report(fleet.Report{Order: starts[0], Outcome: fleet.Done})
	soon("the store to be asked", func() bool { return r.store.asked.Load() > asked })
	for i, a := range agents[1:] {
		a.report(fleet.Report{Order: starts[i+1], Outcome: fleet.Done})
	}
	soon("the others to be heard", func() bool { return r.ctl.turns.length() == len(agents)-1 })
	r.store.mu.Unlock()
	r.until("the job to run", running(id))
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	if n := r.store.commits - before; n != 2 {
		t.Errorf("%d commits for one report and three", n)
	}
}

// TestConflict: another program writes to the store; the controller loads it again and goes
// on.
func TestConflict(t *testing.T) {
	r := newRig(t)
	a := r.attach("host1", fleet.Start)
	id := r.submit(1)
	start := a.task(fleet.Start)
	snap, err := r.store.Load(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	other := fleet.Host{ID: "host7", State: fleet.HostUp}
	if _, err := r.store.Commit(r.ctx, snap.Revision, fleet.Changeset{Hosts: []fleet.Host{other}}); err != nil {
		t.Fatal(err)
	}
	a.report(fleet.Report{Order: start.Order, Outcome: fleet.Done})
	got := r.until("the job to run", running(id))
	if _, ok := got.Hosts["host7"]; !ok || !got.Hosts["host1"].Facts.Connected {
		t.Errorf("%+v", got.Hosts)
	}
}

func TestUnknownImage(t *testing.T) {
	r := newRig(t)
	_, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.Submit, Spec: &fleet.JobSpec{Image: "windows"}})
	r.refused(err, http.StatusUnprocessableEntity, "windows", "openmpi", "pagurus image build")
	_, err = r.client.Ask(r.ctx, fleet.Request{Verb: fleet.Drain, Host: "none"})
	r.refused(err, http.StatusUnprocessableEntity, "none")
	_, _, err = r.client.ReadStream(r.ctx, wire.Place{Job: "j77", Stream: fleet.Stdout})
	r.refused(err, http.StatusNotFound, "j77")
	_, err = r.client.Trace(r.ctx, "j77")
	r.refused(err, http.StatusNotFound, "j77")
}

func TestStreamsAreTheOwners(t *testing.T) {
	r := newRig(t)
	r.attach("host1")
	id := r.submit(1) // as root
	s, stranger := r.ctl.Streams(), fleet.Caller{UID: 4242}
	_, _, err := s.Read(r.ctx, stranger, wire.Place{Job: id, Stream: fleet.Stdout})
	r.refused(err, http.StatusForbidden)
	_, err = s.Write(r.ctx, stranger, wire.Place{Job: id, Stream: fleet.Stdin}, nil, false)
	r.refused(err, http.StatusForbidden)
	_, err = r.ctl.Trace(r.ctx, stranger, id)
	r.refused(err, http.StatusForbidden)
	_, err = s.Write(r.ctx, fleet.Caller{UID: 0}, wire.Place{Job: id, Stream: fleet.Stdout}, []byte("x"), false)
	r.refused(err, http.StatusForbidden) // the owner, but not an agent
}

// TestNothingIsToldTwice: facts that change nothing send no Wanted, and an idle cluster
// commits nothing.
func TestNothingIsToldTwice(t *testing.T) {
	r := newRig(t)
	a := r.attach("host1")
	id := r.submit(1)
	before := r.until("the job to run", func(s fleet.Snapshot) bool {
		return running(id)(s) && s.Hosts["host1"].Address != "" // stored by a tick
	})
	a.task(fleet.Run)
	wanted := func(d wire.Down) bool { return d.Wanted != nil }
	count := a.count(wanted)
	seen := before.Hosts["host1"].Facts.SeenAt
	after := r.until("three seconds of facts", func(s fleet.Snapshot) bool { return s.Hosts["host1"].Facts.SeenAt.After(seen.Add(3 * time.Second)) })
	if after.Revision != before.Revision || a.count(wanted) != count {
		t.Errorf("revision %d after %d, %d Wanted after %d", after.Revision, before.Revision, a.count(wanted), count)
	}
}

// TestWantedFollowsAddresses: other hosts get a host's new address.
func TestWantedFollowsAddresses(t *testing.T) {
	r := newRig(t)
	a := r.attach("host1")
	b := r.attach("host2")
	id := r.submit(4) // more guests than one host takes
	r.until("the job to run", running(id))
	f := r.facts("host2")
	f.Address = "192.0.2.77"
	a.hears("of host2's address", tells("192.0.2.2"))
	b.session.Send(r.ctx, wire.Up{Facts: &f})
	a.hears("of the new address", tells("192.0.2.77"))
}

func tells(vtep string) func(wire.Down) bool {
	return func(d wire.Down) bool {
		if d.Wanted == nil {
			return false
		}
		for _, n := range d.Wanted.Networks {
			for _, e := range n.Endpoints {
				if e.VTEP == vtep {
					return true
				}
			}
		}
		return false
	}
}

// TestManyAsk: concurrent events are handled one after the other.
func TestManyAsk(t *testing.T) {
	r := newRig(t)
	r.attach("host1")
	r.attach("host2")
	results := make(chan error)
	const askers = 20
	for i := range askers {
		go func() {
			q := fleet.Request{ID: fleet.RequestID(fmt.Sprint("q", i/2)), Verb: fleet.Submit, Spec: &fleet.JobSpec{
				Args: []string{"./a.out"}, Dir: "/home/u", Ranks: 1, Guests: 1, Image: "openmpi", Machine: "machine",
				Need: fleet.Resources{CPUs: 1, MemoryBytes: 128 << 20}}}
			_, err := r.client.Ask(r.ctx, q)
			results <- err
		}()
	}
	for range askers {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	snap := r.until("all to run", func(s fleet.Snapshot) bool {
		for _, j := range s.Jobs {
			if j.State != fleet.JobRunning {
				return false
			}
		}
		return true
	})
	if len(snap.Jobs) != askers/2 {
		t.Errorf("%d jobs of %d requests", len(snap.Jobs), askers/2)
	}
}

func TestWatchEnds(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(r.ctx)
	seen := r.ctl.Watch(ctx)
	<-seen
	cancel()
	for range seen {
	}
	r.ctl.do(r.ctx, forItself, func(context.Context) { r.ctl.publish() })
}

// TestNotLeading: a controller that does not lead answers "try again", not that there are no
// jobs.
func TestNotLeading(t *testing.T) {
	c := New(Config{Spool: t.TempDir()})
	soon, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	for what, err := range map[string]error{
		"snapshot": errOf(c.Snapshot(soon)),
		"ask":      errOf(c.Ask(soon, fleet.Request{Verb: fleet.Drain})),
		"explain":  errOf(c.Explain(soon, wire.About{})),
		"trace":    errOf(c.Trace(soon, fleet.Caller{}, "j1")),
	} {
		if !errors.Is(err, wire.ErrNoController) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func errOf[T any](_ T, err error) error { return err }
