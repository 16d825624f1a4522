package planner

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// putBack puts an older state in place as it is, which knows nothing of that, and has the hosts call in
// this order.
func (w *world) putBack(old fleet.Snapshot, order ...fleet.HostID) {
	w.t.Helper()
	old.Revision = w.s.Revision
	for id, h := range old.Hosts {
		h.Facts.SeenAt, h.Facts.Connected, h.Facts.Guests = time.Time{}, false, nil
		old.Hosts[id] = h
	}
	w.s, w.wire = old, nil
	w.s.At, w.s.LedSince = w.now, w.now
	for id := range w.guests {
		w.silence(id)
	}
	for _, id := range order {
		w.tick(5 * time.Second)
		w.reconnect(id)
		w.answerAll()
	}
}

// The store is put back from a raw copy that was made in any phase of a move, and the guest has moved since, or
// stayed, or moved back. The guest goes on where it runs, or is lost, in words; it never runs twice, and its job can always be ended.
func TestRawCopyOfTheStoreInEveryPhase(t *testing.T) {
	for _, mode := range []fleet.Mode{fleet.PreCopy, fleet.PostCopy} {
		for _, phase := range []fleet.Phase{fleet.Preparing, fleet.Copying, fleet.Switching, fleet.Activating, fleet.PostCopying, fleet.Retiring} {
			if phase == fleet.PostCopying && mode != fleet.PostCopy {
				continue
			}
			for _, since := range []string{"moved", "moved back", "cancelled"} {
				for _, order := range [][]fleet.HostID{{"host1", "host2"}, {"host2", "host1"}} {
					t.Run(fmt.Sprintf("%s_%s_%s_%s_first", mode, phase, since, order[0]), func(t *testing.T) {
						t.Parallel()
						rawCopyIn(t, mode, phase, since, order)
					})
				}
			}
		}
	}
}

func rawCopyIn(t *testing.T, mode fleet.Mode, phase fleet.Phase, since string, order []fleet.HostID) {
	w, j := running(t, 1, "host1", "host2")
	m := w.moveUntil(phase, mode)
	old := w.s
	old.Hosts = map[fleet.HostID]fleet.Host{"host1": w.s.Hosts["host1"], "host2": w.s.Hosts["host2"]}
	w.answerAll()
	switch since {
	case "moved back":
		w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: m.From})
		w.answerAll()
	case "cancelled":
		w.must(fleet.Request{Verb: fleet.Cancel, Job: j})
		w.answerAll()
	}
	where := func() (all []fleet.HostID) {
		for id, has := range w.guests {
			if has["j1g0"] == fleet.Running {
				all = append(all, id)
			}
		}
		return all
	}
	ran := where()
	w.putBack(old, order...)
	w.minutes(10)
	g, job := w.s.Guests["j1g0"], w.s.Jobs[j]
	if left := where(); len(left) > 1 {
		t.Fatalf("it runs on %v", left)
	}
	if phase == fleet.Copying && since == "moved" {
		if g.State != fleet.GuestRunning || !slices.Equal(where(), ran) || g.Home != m.To || job.State != fleet.JobRunning {
			t.Errorf("it ran on %v and runs on %v: %+v; job %+v", ran, where(), g, job)
		}
	}
	if !w.s.Migrations["m1.j1g0"].Phase.Ended() {
		t.Errorf("the migration goes on: %+v", w.s.Migrations["m1.j1g0"])
	}
	if job.State == fleet.JobRunning && !slices.Equal(where(), []fleet.HostID{g.Home}) {
		t.Errorf("the job runs, and its guest is on %v: %+v", where(), g)
	}
	if job.State == fleet.JobEnded && strings.TrimSpace(job.Cause) == "" {
		t.Errorf("the job ended without a word: %+v", job)
	}
	if job.State != fleet.JobEnded {
		w.must(fleet.Request{Verb: fleet.Cancel, Job: j})
		w.minutes(10)
	}
	if job := w.s.Jobs[j]; job.State != fleet.JobEnded || len(where()) != 0 || len(Pending(w.s)) != 0 {
		t.Errorf("the job cannot be ended: %+v, its guest is on %v, %v", job, where(), Pending(w.s))
	}
}

// Only a host that has to do with a guest is believed that it has seen a newer generation, and only
// within what can have happened.
func TestWhoIsBelievedThatTheStoreIsOld(t *testing.T) {
	for name, c := range map[string]struct {
		host fleet.HostID
		seen uint64
		born int64
		want bool
	}{
		"its home":                 {"host1", 5, 0, true},
		"the target of its move":   {"host2", 5, 0, true},
		"nothing newer":            {"host1", 1, 0, false},
		"no word of it":            {"host1", 0, 0, false},
		"another host":             {"host3", 5, 0, false},
		"what no move can lead to": {"host1", 2 + mostAhead, 0, false},
		"of an earlier job":        {"host1", 5, 7, false},
	} {
		w, _ := running(t, 1, "host1", "host2", "host3")
		w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host2"})
		g := w.s.Guests["j1g0"]
		order := fleet.Order{Host: c.host, Verb: fleet.Discard, Guest: g.ID, Job: g.Job, Migration: g.Migration, Gen: g.Gen, Born: g.Born + c.born}
		_, _ = w.step(fleet.Report{At: w.now, Order: order, Outcome: fleet.Failed, Cause: "too old", Seen: c.seen})
		if got := w.s.Guests["j1g0"].State == fleet.GuestSought; got != c.want {
			t.Errorf("%s: %+v", name, w.s.Guests["j1g0"])
		}
	}
}
