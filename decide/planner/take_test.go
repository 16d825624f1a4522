package planner

import (
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// A copy that a user kept comes back as a checkpoint of its own, and the job goes on from it, also where nothing else is kept, and the
// job waits or has ended.
func TestJobGoesOnFromACopy(t *testing.T) {
	for _, before := range []string{"running", "waiting", "ended"} {
		w := newWorld(t, "host1", "host2", "host3")
		j := w.running(2, nil)
		first := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}).Checkpoint
		w.answerAll()
		of := fleet.CheckpointCopy{Version: 1, UID: w.s.Jobs[j].Spec.UID, Checkpoint: w.phase(first, fleet.Kept), Output: fleet.Written{Sizes: map[string]int64{fleet.Stdout: 5}}}
		w.must(fleet.Request{Verb: fleet.RemoveCheckpoint, Checkpoint: first})
		w.answerAll()
		w.phase(first, fleet.Removed)
		switch before {
		case "ended":
			w.must(fleet.Request{Verb: fleet.Cancel, Job: j})
			w.answerAll()
		case "waiting":
			for _, h := range []fleet.HostID{"host1", "host2", "host3"} {
				w.must(fleet.Request{Verb: fleet.Drain, Host: h})
			}
			w.must(fleet.Request{Verb: fleet.Restart, Job: j, Beginning: true})
			w.answerAll()
		}
		take := fleet.Request{Verb: fleet.TakeCheckpoint, Job: j, ID: "t1", Taken: &of}
		id := w.must(take).Checkpoint
		if again := w.must(take).Checkpoint; again != id {
			t.Errorf("%s: asked again: %s and %s", before, id, again)
		}
		c := w.phase(id, fleet.Taking)
		for _, p := range c.Guests {
			if p.Vault == "" || w.s.Hosts[p.Vault].Facts.Vault == nil {
				t.Fatalf("%s: %+v", before, p)
			}
			if _, err := w.ask(fleet.Request{Verb: fleet.Restart, Job: j, Checkpoint: id}); err == nil {
				t.Fatal("it began at what has not come yet")
			}
			w.points.vaults[string(id)+"/"+string(p.Guest)] = p.Vault
			w.observe(fleet.Observation{Given: fleet.PartName{Checkpoint: id, Guest: p.Guest}})
		}
		w.phase(id, fleet.Kept)
		w.must(fleet.Request{Verb: fleet.Restart, Job: j, Checkpoint: id})
		for _, h := range []fleet.HostID{"host1", "host2", "host3"} {
			w.must(fleet.Request{Verb: fleet.Undrain, Host: h})
		}
		w.tick(time.Second)
		w.answerAll()
		if is := w.s.Jobs[j]; is.Incarnation == 0 || is.Started.IsZero() || is.From != id {
			t.Errorf("%s: %+v", before, is)
		}
	}
}

// Copies that come back take the place of no checkpoint from which a suspended job is to go on.
func TestCopiesLeaveWhatASuspendedJobHas(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	j := w.running(1, nil)
	first := w.must(fleet.Request{Verb: fleet.SuspendJob, Job: j}).Checkpoint
	w.answerAll()
	of := fleet.CheckpointCopy{Version: 1, UID: w.s.Jobs[j].Spec.UID, Checkpoint: w.phase(first, fleet.Kept)}
	for range 3 {
		id := w.must(fleet.Request{Verb: fleet.TakeCheckpoint, Job: j, Taken: &of}).Checkpoint
		for _, p := range w.phase(id, fleet.Taking).Guests {
			w.points.vaults[string(id)+"/"+string(p.Guest)] = p.Vault
			w.observe(fleet.Observation{Given: fleet.PartName{Checkpoint: id, Guest: p.Guest}})
		}
		w.answerAll()
		w.phase(id, fleet.Kept)
	}
	w.phase(first, fleet.Kept)
	w.must(fleet.Request{Verb: fleet.ResumeJob, Job: j})
	w.answerAll()
	if is := w.s.Jobs[j]; is.State != fleet.JobRunning || is.From != first {
		t.Errorf("%+v", is)
	}
}

// What does not fit is refused, and a copy that does not come back is dropped; both leave the job alone.
func TestCopyIsRefused(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	j := w.running(2, nil)
	first := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}).Checkpoint
	w.answerAll()
	of := fleet.CheckpointCopy{Version: 1, UID: w.s.Jobs[j].Spec.UID, Checkpoint: w.phase(first, fleet.Kept)}
	other := func(change func(*fleet.CheckpointCopy)) *fleet.CheckpointCopy {
		c := of
		change(&c)
		return &c
	}
	for says, r := range map[string]fleet.Request{
		"no job j9 any more":             {Job: "j9", Taken: &of},
		"has no copy":                    {Job: j},
		"is of job j7":                   {Job: j, Taken: other(func(c *fleet.CheckpointCopy) { c.Checkpoint.Job = "j7" })},
		"of uid 77":                      {Job: j, Taken: other(func(c *fleet.CheckpointCopy) { c.UID = 77 })},
		"an earlier job that was called": {Job: j, Taken: other(func(c *fleet.CheckpointCopy) { c.Checkpoint.Born++ })},
		"has 1 guests":                   {Job: j, Taken: other(func(c *fleet.CheckpointCopy) { c.Checkpoint.Guests = c.Checkpoint.Guests[:1] })},
		"MiB free for guest": {Job: j, Taken: other(func(c *fleet.CheckpointCopy) {
			c.Checkpoint.Guests = []fleet.CheckpointPart{{Guest: "j1g0", Bytes: 1 << 49}, {Guest: "j1g1"}}
		})},
	} {
		r.Verb = fleet.TakeCheckpoint
		if _, err := w.ask(r); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v does not say %q", err, says)
		}
	}
	id := w.must(fleet.Request{Verb: fleet.TakeCheckpoint, Job: j, ID: "t1", Taken: &of}).Checkpoint
	next := w.must(fleet.Request{Verb: fleet.TakeCheckpoint, Job: j, ID: "t2", Taken: &of}).Checkpoint
	w.answerAll()
	w.phase(id, fleet.Void)
	w.phase(next, fleet.Taking)
	made := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}).Checkpoint // beside it
	w.answerAll()
	w.phase(made, fleet.Kept)
	w.must(fleet.Request{Verb: fleet.RemoveCheckpoint, Checkpoint: next})
	w.answerAll()
	w.phase(next, fleet.Void)
	if w.s.Jobs[j].State != fleet.JobRunning || w.s.Jobs[j].Incarnation != 0 {
		t.Errorf("%+v", w.s.Jobs[j])
	}
}
