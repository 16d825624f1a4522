package planner

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/decide/placement"
	"pagurus/fleet"
)

// power cuts a host's power for good.
func (w *world) power(id fleet.HostID) {
	w.cut(id)
	clear(w.guests[id])
	clear(w.whole[id])
}

// moveUntil begins a move of j1g0 and answers its orders until a phase is reached.
func (w *world) moveUntil(p fleet.Phase, mode fleet.Mode) fleet.Migration {
	w.t.Helper()
	w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", Limits: fleet.Limits{Mode: mode}})
	for range 20 {
		if m := w.s.Migrations["m1.j1g0"]; m.Phase == p {
			return m
		}
		w.answer(slices.IndexFunc(w.wire, func(o fleet.Order) bool { return o.Migration != "" }))
	}
	w.t.Fatalf("it never is %s", p)
	return fleet.Migration{}
}

// minutes advances time, and hosts answer all that they are asked.
func (w *world) minutes(n int) {
	w.t.Helper()
	for range n {
		w.minute()
	}
}

// A host that loses power for good fails its jobs once its lease is over, and no earlier.
func TestHostGoneForGood(t *testing.T) {
	w, j := running(t, 2, "host1", "host2")
	w.power("host1")
	w.tick(aLease)
	if w.s.Jobs[j].State != fleet.JobRunning {
		t.Fatalf("given up too early: %+v", w.s.Jobs[j])
	}
	w.tick(fleet.LeaseMargin(aLease) + 2*time.Second)
	w.answerAll()
	job := w.s.Jobs[j]
	if job.State != fleet.JobEnded || job.Result != fleet.JobFailed || job.LostWith != "host1" || !strings.Contains(job.Cause, "host1 is gone: it has not been heard from for") {
		t.Errorf("job: %+v", job)
	}
	for _, g := range w.s.Guests {
		if lost := g.State == fleet.GuestLost; lost != (g.Home == "host1") {
			t.Errorf("guest: %+v", g)
		}
	}
	if len(w.guests["host2"]) != 0 || len(Pending(w.s)) != 0 {
		t.Errorf("left: %v, %v", w.guests["host2"], Pending(w.s))
	}
	w.tick(time.Hour)
	if h := w.s.Hosts["host1"]; !h.Lost || len(h.Losses) != 1 || len(w.s.Hosts["host2"].Losses) != 0 {
		t.Errorf("its loss is not counted once: %+v", h)
	}
	lines, err := w.p.Explain(w.s, Subject{Host: "host1"})
	if says := strings.Join(lines, " "); err != nil || !strings.Contains(says, "It was lost with what ran there once") {
		t.Error(says, err)
	}
	w.boots("host1", "another")
	w.reconnect("host1")
	w.tick(time.Second)
	if h := w.s.Hosts["host1"]; h.Lost || len(h.Losses) != 1 {
		t.Errorf("it is back: %+v", h)
	}
	w.power("host1")
	w.tick(2 * aLease)
	w.must(fleet.Request{Verb: fleet.Forget, Host: "host1"})
}

// A job that is cancelled while one of its hosts is cut off ends only when it certainly no longer
// runs there: what is begun after it may use the same files.
func TestCancelledJobDoesNotRunBesideItsSuccessor(t *testing.T) {
	w, j := running(t, 1, "host1", "host2", "host3")
	home := w.s.Guests["j1g0"].Home
	w.cut(home)
	w.must(fleet.Request{Verb: fleet.Cancel, Job: j})
	w.tick(aLease - 2*time.Second)
	if w.s.Jobs[j].State != fleet.JobStopping || w.guests[home]["j1g0"] != fleet.Running {
		t.Fatalf("job %s, %s has %v", w.s.Jobs[j].State, home, w.guests[home])
	}
	w.tick(30 * time.Second)
	if job := w.s.Jobs[j]; job.State != fleet.JobEnded || job.Result != fleet.JobCancelled || job.LostWith != "" {
		t.Errorf("job: %+v", job)
	}
	if len(w.guests[home]) != 0 {
		t.Errorf("%s still has %v", home, w.guests[home])
	}
}

// The same when the host comes back in time: it stops the guest as it was told.
func TestCancelledJobEndsWhenItsHostIsBack(t *testing.T) {
	w, j := running(t, 1, "host1", "host2")
	home := w.s.Guests["j1g0"].Home
	w.cut(home)
	w.must(fleet.Request{Verb: fleet.Cancel, Job: j})
	w.tick(40 * time.Second)
	w.reconnect(home)
	w.answerAll()
	if w.s.Jobs[j].State != fleet.JobEnded || len(w.guests[home]) != 0 {
		t.Errorf("job %s, %s has %v", w.s.Jobs[j].State, home, w.guests[home])
	}
}

// A grace for the program to end does not outlast the host: the job is cancelled, as was asked.
func TestCancelledJobOfAGoneHostIsCancelled(t *testing.T) {
	w, j := running(t, 1, "host1", "host2")
	long := 10 * time.Minute
	w.must(fleet.Request{Verb: fleet.Cancel, Job: j, Grace: &long})
	w.power(w.s.Guests["j1g0"].Home)
	w.tick(2 * time.Minute)
	if job := w.s.Jobs[j]; job.State != fleet.JobEnded || job.Result != fleet.JobCancelled || job.LostWith != "" {
		t.Errorf("job: %+v", job)
	}
}

// In every phase of a move the source or the target is gone, by power or cut off. The guest goes
// on where only the other one has all of it, and is lost otherwise.
func TestHostGoneInEveryPhase(t *testing.T) {
	for _, mode := range []fleet.Mode{fleet.PreCopy, fleet.PostCopy} {
		for _, phase := range []fleet.Phase{fleet.Preparing, fleet.Copying, fleet.Switching, fleet.Activating, fleet.PostCopying, fleet.Retiring} {
			if phase == fleet.PostCopying && mode != fleet.PostCopy {
				continue
			}
			for _, target := range []bool{false, true} {
				for _, cut := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s_%s_target_%t_cut_%t", mode, phase, target, cut), func(t *testing.T) {
						t.Parallel()
						goneIn(t, mode, phase, target, cut)
					})
				}
			}
		}
	}
}

func goneIn(t *testing.T, mode fleet.Mode, phase fleet.Phase, target, cut bool) {
	w, j := running(t, 1, "host1", "host2", "host3")
	m := w.moveUntil(phase, mode)
	gone := m.From
	if target {
		gone = m.To
	}
	if w.cut(gone); !cut {
		w.power(gone)
	}
	for range 15 * 12 { // a quarter of an hour
		w.answerAll()
		w.leap(5 * time.Second)
	}
	// Who is only cut off goes on with what it was told, for as long as its lease.
	arrived := phase == fleet.Retiring || phase == fleet.Activating && mode == fleet.PreCopy || cut && (phase == fleet.Activating || phase == fleet.PostCopying)
	stayed := phase == fleet.Preparing || !cut && (phase == fleet.Copying || phase == fleet.Switching)
	lives := target && stayed || !target && arrived
	g, job := w.s.Guests["j1g0"], w.s.Jobs[j]
	if lives != (job.State == fleet.JobRunning) || lives && w.guests[g.Home]["j1g0"] != fleet.Running {
		t.Errorf("job %s (%s), guest %+v, hosts %v", job.State, job.Cause, g, w.guests)
	}
	if !lives && (job.State != fleet.JobEnded || job.LostWith != gone && phase != fleet.Switching && phase != fleet.Activating && phase != fleet.PostCopying) {
		t.Errorf("job %+v, migration %+v", job, w.s.Migrations[m.ID])
	}
}

// The source loses power when it has delivered everything, and the word of it is lost with it.
func TestSourceGoneAndTargetWhole(t *testing.T) {
	w, j := running(t, 1, "host1", "host2")
	m := w.moveUntil(fleet.Switching, fleet.PreCopy)
	w.carry(w.wire[slices.IndexFunc(w.wire, func(o fleet.Order) bool { return o.Verb == fleet.Switch })])
	w.power(m.From)
	w.minutes(8)
	if g := w.s.Guests["j1g0"]; g.State != fleet.GuestRunning || g.Home != m.To || w.guests[m.To]["j1g0"] != fleet.Running || w.s.Jobs[j].State != fleet.JobRunning {
		t.Errorf("guest: %+v, job: %+v, migration: %+v", g, w.s.Jobs[j], w.s.Migrations[m.ID])
	}
}

// A target that loses power while a guest is copied to it holds nothing up: the guest goes elsewhere when the target is silent, with
// a lease or without one. What the target has of it, when it was only cut off, it destroys when it is back.
func TestSilentTargetDiscardsAlone(t *testing.T) {
	for _, lease := range []time.Duration{aLease, 0} {
		for _, power := range []bool{true, false} {
			for _, phase := range []fleet.Phase{fleet.Preparing, fleet.Copying} {
				w, j := running(t, 1, "host1", "host2", "host3")
				m := w.moveUntil(phase, fleet.PreCopy)
				w.lease(m.To, lease)
				if w.cut(m.To); power {
					w.power(m.To)
				}
				if phase == fleet.Copying {
					w.fault(fleet.Copy, "failed")
				} else {
					w.must(fleet.Request{Verb: fleet.CancelMove, Move: m.Move})
				}
				w.answerAll()
				w.tick(placement.SilentAfter + 2*time.Second)
				g := w.s.Guests["j1g0"]
				if g.State != fleet.GuestRunning || g.Home != m.From || w.s.Migrations[m.ID].Phase != fleet.Aborted || w.s.Moves[m.Move].Ended.IsZero() {
					t.Fatalf("lease %s, power %t, %s: %+v, %+v", lease, power, phase, g, w.s.Migrations[m.ID])
				}
				w.must(fleet.Request{Verb: fleet.Migrate, Guest: g.ID})
				w.answerAll()
				if g := w.s.Guests["j1g0"]; g.State != fleet.GuestRunning || g.Home == m.From || g.Home == m.To {
					t.Fatalf("lease %s, power %t, %s: it does not go elsewhere: %+v", lease, power, phase, g)
				}
				w.reconnect(m.To)
				w.answerAll()
				if len(w.guests[m.To]) != 0 || w.s.Jobs[j].State != fleet.JobRunning {
					t.Errorf("lease %s, power %t, %s: %s has %v, the job is %s", lease, power, phase, m.To, w.guests[m.To], w.s.Jobs[j].State)
				}
			}
		}
	}
}

// Members of a gang stay when one of them is lost before the switch.
func TestGangLosesASource(t *testing.T) {
	w, _ := running(t, 1, "host1", "host2", "host3")
	r := submission(1)
	r.ID = "another"
	w.must(r)
	w.answerAll()
	a, b := w.s.Guests["j1g0"], w.s.Guests["j2g0"]
	if a.Home == b.Home {
		t.Fatal("both are on one host")
	}
	w.must(fleet.Request{Verb: fleet.Migrate, Guests: []fleet.GuestID{a.ID, b.ID}, To: "host3"})
	w.power(a.Home)
	w.minutes(3)
	if g := w.s.Guests[b.ID]; g.State != fleet.GuestRunning || g.Home != b.Home || w.s.Moves["m1"].Ended.IsZero() {
		t.Errorf("guest: %+v, move %+v", g, w.s.Moves["m1"])
	}
	if w.s.Jobs["j1"].State != fleet.JobEnded {
		t.Errorf("job: %+v", w.s.Jobs["j1"])
	}
}

// A controller that has just begun to lead, or was suspended, gives every host a whole lease.
func TestNewLeaderWaitsForAWholeLease(t *testing.T) {
	w, j := running(t, 2, "host1", "host2")
	w.cut("host1")
	w.now = w.now.Add(aLease - time.Second)
	w.s.LedSince = w.now
	w.tick(aLease + time.Second) // another leader may have renewed it just before
	if w.s.Jobs[j].State != fleet.JobRunning {
		t.Fatalf("job: %+v", w.s.Jobs[j])
	}
	w.tick(fleet.LeaseMargin(aLease) + time.Second)
	if job := w.s.Jobs[j]; job.State == fleet.JobRunning {
		t.Errorf("job: %+v", job)
	}
}

// The controller's clock is set back by two hours; then a host dies.
func TestClockSetBack(t *testing.T) {
	w, j := running(t, 2, "host1", "host2")
	w.hear()
	w.now = w.now.Add(-2 * time.Hour)
	w.power("host2")
	w.s.LedSince = w.now // as the controller does when it notices
	w.tick(aLease)
	if w.s.Jobs[j].State != fleet.JobRunning {
		t.Fatalf("job: %+v", w.s.Jobs[j])
	}
	w.tick(5 * time.Minute)
	if w.s.Jobs[j].State == fleet.JobRunning {
		t.Errorf("job: %+v", w.s.Jobs[j])
	}
	r := submission(1)
	r.ID, r.Now = "b", true
	r.Spec.On = []fleet.HostID{"host2"}
	if a, err := w.ask(r); err == nil {
		t.Errorf("placed on a host that has been dead for ten minutes: %+v", a)
	}
}

// What a restored store says about leases is old.
func TestRestoredStoreKnowsNoLeases(t *testing.T) {
	w, _ := running(t, 1, "host1", "host2")
	backup := w.s
	backup.Hosts = maps.Clone(backup.Hosts)
	restored := backup.Apply(w.p.Restore(backup, w.now, w.now.Add(time.Hour), 1), backup.Revision+1)
	for id, h := range restored.Hosts {
		if h.Lease != 0 {
			t.Errorf("%s has a lease of %s", id, h.Lease)
		}
	}
}
