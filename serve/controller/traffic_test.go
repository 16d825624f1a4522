package controller

import (
	"testing"
	"time"

	"pagurus/fleet"
)

// A job is asked after a minute and whenever its run time has doubled; few at the same time.
func TestWhenJobsAreAskedForTraffic(t *testing.T) {
	begun := time.Unix(0, 0)
	j := fleet.Job{ID: "j1", State: fleet.JobRunning, Started: begun, Spec: fleet.JobSpec{Guests: 2, Trace: true}}
	c := trafficQueries{asked: map[fleet.JobID]time.Duration{}}
	var at []int
	for s := range 1000 {
		if ran := time.Duration(s) * time.Second; c.due(j, begun.Add(ran)) {
			c.asked[j.ID] = ran
			at = append(at, s)
		}
	}
	if len(at) != 5 || at[0] != 60 || at[4] != 960 {
		t.Errorf("asked after %v seconds", at)
	}
	for _, never := range []func(*fleet.Job, *trafficQueries){
		func(j *fleet.Job, _ *trafficQueries) { j.Spec.Guests = 1 },
		func(j *fleet.Job, _ *trafficQueries) { j.Spec.Trace = false },
		func(j *fleet.Job, _ *trafficQueries) { j.State = fleet.JobStopping },
		func(_ *fleet.Job, c *trafficQueries) { c.under = mostTrafficQueries },
	} {
		j, c := j, trafficQueries{}
		if never(&j, &c); c.due(j, begun.Add(time.Hour)) {
			t.Errorf("%+v is asked", j)
		}
	}
	two := fleet.NewSnapshot()
	for id, site := range map[fleet.HostID]string{"host1": "", "host2": "attic", "host3": "attic"} {
		two.Hosts[id] = fleet.Host{ID: id, Facts: fleet.Facts{Site: site}}
	}
	if sited(two) {
		t.Error("one site counts as two")
	}
	two.Hosts["host1"] = fleet.Host{ID: "host1", Facts: fleet.Facts{Site: "cellar"}}
	if !sited(two) {
		t.Error("two sites count as one")
	}
}

// The ranks' traffic is in the planner's snapshot.
func TestTrafficIsRecorded(t *testing.T) {
	r := newRig(t)
	for _, id := range []fleet.HostID{"host1", "host2"} {
		r.attach(id)
	}
	id := r.submit(2)
	s := r.until("the job to run", running(id))
	r.ctl.askTraffic(r.ctx, s, s.Jobs[id])
	s = r.until("the traffic to be known", func(s fleet.Snapshot) bool { return len(s.Jobs[id].Traffic) > 0 })
	if got, want := s.Jobs[id].Traffic[0], (fleet.Traffic{A: 0, B: 1, Messages: 2, Bytes: 2000}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
