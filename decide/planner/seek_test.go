package planner

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// restore puts an older state in place, with no host heard yet.
func (w *world) restore(backup fleet.Snapshot) {
	w.t.Helper()
	s := backup
	s.Hosts = map[fleet.HostID]fleet.Host{}
	for id, h := range backup.Hosts {
		h.Facts.SeenAt, h.Facts.Connected, h.Facts.Guests = time.Time{}, false, nil
		s.Hosts[id] = h
		w.silence(id)
	}
	w.wire, w.log, w.restored = nil, nil, w.restored+1
	w.s = s.Apply(w.p.Restore(s, backup.At, w.now, w.restored), s.Revision+1)
	w.s.At, w.s.LedSince = w.now, w.now
	w.sound()
}

// ordered reports whether a guest was ordered to do something since the last restore.
func (w *world) ordered(g fleet.GuestID, verbs ...fleet.Verb) bool {
	return slices.ContainsFunc(w.log, func(o fleet.Order) bool { return o.Guest == g && slices.Contains(verbs, o.Verb) })
}

// A guest that moved after the backup is found where it is, in whatever order hosts come back,
// and its job goes on. The host where the backup has it is not asked for it.
func TestRestoredGuestIsFoundWhereItMoved(t *testing.T) {
	for _, first := range []fleet.HostID{"host1", "host2", "host3"} {
		t.Run(string(first), func(t *testing.T) {
			w, j := running(t, 2, "host1", "host2", "host3")
			backup := w.s
			was := w.s.Guests["j1g1"].Home
			w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g1", To: "host3"})
			w.answerAll()
			if w.guests["host3"]["j1g1"] != fleet.Running || was == "host3" {
				t.Fatalf("it was to move from %s to host3: %v", was, w.guests)
			}
			w.tick(2 * time.Hour) // by now host2 has forgotten that it had the guest
			delete(w.saw[was], "j1g1")
			w.restore(backup)
			w.tick(time.Minute)
			if g := w.s.Guests["j1g1"]; g.State != fleet.GuestSought || len(Pending(w.s)) != 0 {
				t.Fatalf("before any host was heard: %+v, %v", g, Pending(w.s))
			}
			w.reconnect(first)
			w.answerAll()
			w.tick(time.Minute)
			for _, id := range []fleet.HostID{"host1", "host2", "host3"} {
				w.reconnect(id)
				w.answerAll()
			}
			w.tick(time.Minute)
			w.answerAll()
			if g := w.s.Guests["j1g1"]; g.State != fleet.GuestRunning || g.Home != "host3" || g.Gen <= 2 || !strings.Contains(g.Reason, "restored, which had it on "+string(was)) {
				t.Errorf("guest: %+v", g)
			}
			if w.ordered("j1g1", fleet.Start, fleet.Stop) || w.guests["host3"]["j1g1"] != fleet.Running {
				t.Errorf("it was not left alone: %v", w.log)
			}
			w.exited[j] = true
			w.answerAll()
			if job := w.s.Jobs[j]; job.State != fleet.JobEnded || job.Exit == nil || job.Exit.Code != 7 {
				t.Errorf("job: %+v", job)
			}
		})
	}
}

// A guest that has ended since is not started a second time, whether it ran at the backup or was
// about to; its job says what happened. A job that waited to be begun again is not.
func TestRestoredGuestIsNotStartedAgain(t *testing.T) {
	for name, booted := range map[string]bool{"it ran": true, "it was starting": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "host1", "host2")
			j := w.must(submission(1)).Job
			if booted {
				w.answerAll()
			}
			backup := w.s
			w.answerAll()
			w.exited[j] = true
			w.answerAll()
			if w.s.Jobs[j].State != fleet.JobEnded {
				t.Fatalf("job: %+v", w.s.Jobs[j])
			}
			w.restore(backup)
			w.reconnect("host1")
			w.tick(2 * seekFor)
			if g := w.s.Guests["j1g0"]; g.State != fleet.GuestSought {
				t.Fatalf("a host was not heard yet: %+v", g)
			}
			w.reconnect("host2")
			w.answerAll()
			w.tick(time.Second)
			if job := w.s.Jobs[j]; job.State != fleet.JobEnded || job.Result != fleet.JobFailed || !strings.Contains(job.Cause, "restored from a backup of 2026-01-02") {
				t.Errorf("job: %+v", job)
			}
			if len(w.log) != 0 {
				t.Errorf("ordered %v", w.log)
			}
		})
	}
	w, j := running(t, 1, "host1")
	job := w.s.Jobs[j]
	job.Requeue = true
	w.s.Jobs[j] = job
	w.restore(w.s)
	w.reconnect("host1")
	w.must(fleet.Request{Verb: fleet.Cancel, Job: j, Grace: new(time.Duration)})
	w.answerAll()
	w.tick(time.Minute)
	if len(w.s.Jobs) != 1 || !strings.Contains(w.s.Jobs[j].Cause, "cancel") {
		t.Errorf("jobs: %+v", w.s.Jobs)
	}
}

// A guest between two hosts is not guessed at: it is lost, in words, and both destroy what
// they have. Until all hosts are heard both keep it.
func TestRestoredGuestBetweenHostsIsLost(t *testing.T) {
	w, j := running(t, 1, "host1", "host2", "host3")
	backup := w.s
	from := w.s.Guests["j1g0"].Home
	w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host3"})
	for w.guests[from]["j1g0"] != fleet.Suspended {
		w.answer(slices.IndexFunc(w.wire, func(o fleet.Order) bool { return o.Migration != "" }))
	}
	w.restore(backup)
	w.reconnect(from)
	w.reconnect("host3")
	w.tick(time.Minute)
	if w.guests[from]["j1g0"] == "" || w.guests["host3"]["j1g0"] == "" {
		t.Fatalf("one of the two was destroyed: %v", w.guests)
	}
	w.reconnect("host2")
	w.tick(time.Minute)
	if job := w.s.Jobs[j]; job.State != fleet.JobEnded || !strings.Contains(job.Cause, "between hosts") {
		t.Errorf("job: %+v", job)
	}
	if w.guests[from]["j1g0"] != "" || w.guests["host3"]["j1g0"] != "" {
		t.Errorf("left: %v", w.guests)
	}
}

// A job that is younger than the backup is ended, and a record of it says so. No later job has
// its name, and no later move an older one's.
func TestYoungerJobIsRecorded(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	backup := w.s
	young := w.must(submission(2)).Job
	w.answerAll()
	w.restore(backup)
	w.s.Cluster.NextJob = 1 // as if more jobs had begun since than a restore skips
	w.reconnect("host1")
	w.reconnect("host2")
	job := w.s.Jobs[young]
	if job.State != fleet.JobEnded || job.Result != fleet.JobFailed || job.Spec.Guests != 2 || !strings.Contains(job.Cause, "older than this job") {
		t.Errorf("job: %+v", job)
	}
	if len(w.guests["host1"])+len(w.guests["host2"]) != 0 {
		t.Errorf("left: %v", w.guests)
	}
	if next := w.must(submission(1)).Job; next != "j2" {
		t.Errorf("the next job is %s", next)
	}
	w.restore(backup)
	const more = 2 * skipped // it is the second time
	if c := w.s.Cluster; c.NextJob != backup.Cluster.NextJob+more || c.NextMove != max(1, backup.Cluster.NextMove)+more || c.LastHost != backup.Cluster.LastHost+more {
		t.Errorf("cluster: %+v", c)
	}
}

// While a guest is sought it is said what is waited for, it cannot be moved, and its job can be
// cancelled.
func TestSoughtGuestCanBeGivenUp(t *testing.T) {
	w, j := running(t, 1, "host1", "host2")
	w.s.Tokens["old"] = fleet.JoinToken{ID: "old"}
	home := w.s.Guests["j1g0"].Home
	w.restore(w.s)
	if len(w.s.Tokens) != 0 {
		t.Errorf("tokens: %v", w.s.Tokens)
	}
	lines, err := w.p.Explain(w.s, Subject{Guest: "j1g0"})
	if says := strings.Join(lines, " "); err != nil || !strings.Contains(says, "Not heard from yet: host1 and host2") {
		t.Errorf("explanation: %s %v", says, err)
	}
	if _, err := w.ask(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host2"}); err == nil || !strings.Contains(err.Error(), "no host has said yet") {
		t.Errorf("a move: %v", err)
	}
	w.must(fleet.Request{Verb: fleet.Cancel, Job: j, Grace: new(time.Duration)})
	if job := w.s.Jobs[j]; job.State != fleet.JobEnded || job.Result != fleet.JobCancelled {
		t.Errorf("job: %+v", job)
	}
	w.reconnect(home)
	if w.guests[home]["j1g0"] != "" {
		t.Error("its host still has it")
	}
}
