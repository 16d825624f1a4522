package controller

import (
	"context"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// tellUsed tells facts with what a guest has used so far.
func (a *agent) tellUsed(g fleet.GuestID, used time.Duration) {
	f := a.r.facts(a.id)
	f.Guests = map[fleet.GuestID]fleet.GuestFacts{g: {Run: fleet.Running, ResidentBytes: 100 << 20, CPUTime: used}}
	a.session.Send(a.r.ctx, wire.Up{Facts: &f})
}

// TestUsage: what a job uses is counted over a restart of the controller, with its moves and its end, and is for its user and
// administrators.
func TestUsage(t *testing.T) {
	r := newRig(t)
	r.factsEvery = time.Hour // only what the test tells
	agents := map[fleet.HostID]*agent{"host1": r.attach("host1"), "host2": r.attach("host2")}
	id := r.submit(1)
	g := r.until("the job to run", running(id)).Guests[fleet.GuestID(string(id)+"g0")]
	home := agents[g.Home]
	home.tellUsed(g.ID, 500*time.Millisecond)
	home.tellUsed(g.ID, 1500*time.Millisecond)
	used := func() (u fleet.Usage) {
		t.Helper()
		a, err := r.client.Usage(r.ctx, time.Now().Add(-time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range a.Records {
			if rec.Job != id || rec.About.Name != "a.out" || rec.Read != nil {
				t.Errorf("%+v", rec)
			}
			u = u.Plus(rec.Sum())
		}
		return u
	}
	r.waitFor("its processor time", func() bool { return used().CPUSeconds == 1.5 })

	r.stop()
	r.start()
	home = r.attach(g.Home)
	r.attach(map[fleet.HostID]fleet.HostID{"host1": "host2", "host2": "host1"}[g.Home])
	home.tellUsed(g.ID, 2500*time.Millisecond)
	r.waitFor("the counter to go on after a restart", func() bool { return used().CPUSeconds == 2.5 })
	answer, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.Migrate, Guest: g.ID})
	if err != nil {
		t.Fatal(err)
	}
	r.until("the move to end", func(s fleet.Snapshot) bool { return !s.Moves[answer.Moves[0]].Ended.IsZero() })
	if u := used(); u.Moves != 1 {
		t.Errorf("%+v", u)
	}
	if _, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.Cancel, Job: id}); err != nil {
		t.Fatal(err)
	}
	r.until("its end", jobEnded(id))
	a, err := r.ctl.Usage(r.ctx, fleet.Caller{UID: 4711}, time.Now().Add(-time.Hour))
	if err != nil || len(a.Records) != 0 {
		t.Errorf("another user sees %+v, %v", a.Records, err)
	}
	a, err = r.ctl.Usage(r.ctx, fleet.Caller{Admin: true}, time.Now().Add(-time.Hour))
	if err != nil || len(a.Records) != 1 || a.Records[0].About.Result != fleet.JobCancelled || a.Records[0].About.Ended.IsZero() {
		t.Errorf("%+v, %v", a.Records, err)
	}
	all, bad, err := r.ctl.Usages.LoadUsage(r.ctx)
	if err != nil || len(bad) > 0 || len(all) != 1 {
		t.Errorf("in the store: %+v, %v, %v", all, bad, err)
	}
}

// waitFor waits for something that no watcher is told of.
func (r *rig) waitFor(what string, is func() bool) {
	r.t.Helper()
	ctx, stop := context.WithTimeout(r.ctx, time.Minute)
	defer stop()
	for !is() {
		select {
		case <-ctx.Done():
			r.t.Fatalf("waited in vain for %s", what)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
