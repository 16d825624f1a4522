package planner

import (
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// cannotPostCopy makes a host unable to receive post-copy.
func (w *world) cannotPostCopy(id fleet.HostID) {
	h := w.s.Hosts[id]
	h.Facts.Abilities = map[fleet.Kind]fleet.Abilities{fleet.VM: {Live: true, Accelerator: "tcg", NoPostCopy: "userfaultfd is not allowed"}}
	w.s.Hosts[id] = h
}

// TestModeIsChosen: the choice depends on predictions, the request and the hosts'
// abilities.
func TestModeIsChosen(t *testing.T) {
	slow := fleet.Limits{BytesPerSecond: 100 << 20}
	for _, c := range []struct {
		name    string
		profile func(time.Time) fleet.Profile
		limits  fleet.Limits
		cannot  bool
		mode    fleet.Mode // empty: refused
		says    string
	}{
		{"a guess risks nothing", nil, slow, false, fleet.PreCopy, "the memory of j1g0 has not been sampled"},
		{"it converges", idleProfile, slow, false, fleet.PreCopy, "with a downtime of 50ms"},
		{"more than is allowed", idleProfile, fleet.Limits{BytesPerSecond: 100 << 20, Downtime: 10 * time.Millisecond}, false, fleet.PreCopy, "less than the 10ms allowed"},
		{"asked for", idleProfile, fleet.Limits{Mode: fleet.PostCopy}, false, fleet.PostCopy, ""},
		{"asked for where it cannot be", idleProfile, fleet.Limits{Mode: fleet.PostCopy}, true, "", "host2, which cannot take in a guest by post-copy: userfaultfd is not allowed"},
		{"it does not converge", wild, slow, false, fleet.PostCopy, "by pre-copy guest j1g0 would not converge"},
		{"nor is there post-copy", wild, slow, true, "", "pagurus doctor --fix"},
		{"tried all the same", wild, fleet.Limits{Mode: fleet.PreCopy}, true, fleet.PreCopy, ""},
		{"it may be suspended", wild, fleet.Limits{BytesPerSecond: 100 << 20, Downtime: time.Minute, Deadline: 3 * time.Second}, true, fleet.StopAndCopy, "stopped for it"},
		{"so that anything converges", wild, fleet.Limits{BytesPerSecond: 100 << 20, Downtime: time.Minute}, true, fleet.PreCopy, "downtime of 5."},
		{"never in time", idleProfile, fleet.Limits{BytesPerSecond: 50 << 20, Deadline: time.Second}, false, "", "after the deadline of 1s"},
	} {
		w, _ := running(t, 1, "host1", "host2")
		if c.profile != nil {
			w.profiled(c.profile(w.now))
		}
		if c.cannot {
			w.cannotPostCopy("host2")
		}
		r := fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host2", Limits: c.limits}
		_, err := w.ask(r)
		if c.mode == "" {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		m, v := w.s.Migrations["m1.j1g0"], w.s.Moves["m1"]
		if err != nil || m.Mode != c.mode || !strings.Contains(v.Choice, c.says) || (c.says == "") != (v.Choice == "") || m.Predicted.Limits.Mode != c.mode {
			t.Errorf("%s: %v, %s because %q, predicted for %s", c.name, err, m.Mode, v.Choice, m.Predicted.Limits.Mode)
		}
		task := Task(w.s, fleet.Order{Verb: fleet.Copy, Host: m.From, Job: m.Job, Guest: m.Guest, Migration: m.ID, Peer: m.To})
		if want := m.Mode == fleet.PreCopy && !m.Predicted.Converges; task.Limits.Slow != want {
			t.Errorf("%s: it may be slowed: %t, want %t", c.name, task.Limits.Slow, want)
		}
		lines, err := w.p.Explain(w.s, Subject{Guest: "j1g0"})
		if text := strings.Join(lines, "\n"); err != nil || !strings.Contains(text, "It goes by "+string(c.mode)) {
			t.Errorf("%s: explained %q, %v", c.name, text, err)
		}
	}
}

// TestWithoutRounds: from a host whose kernel does not tell which pages were written, all memory
// goes while the guest is suspended. That is said, and refused where it is not allowed.
func TestWithoutRounds(t *testing.T) {
	for _, c := range []struct {
		name   string
		limits fleet.Limits
		mode   fleet.Mode // empty: refused
		says   string
	}{
		{"by itself", fleet.Limits{}, fleet.StopAndCopy, "all memory of j1g0 goes while it is suspended, since on host1 the kernel is old; its expected downtime is "},
		{"asked for", fleet.Limits{Mode: fleet.StopAndCopy}, fleet.StopAndCopy, ""},
		{"other than asked for", fleet.Limits{Mode: fleet.PreCopy}, "", "the kernel is old: use --mode stop-and-copy"},
		{"longer than allowed", fleet.Limits{Downtime: time.Millisecond}, "", "more than the 1ms allowed"},
		{"as long as allowed", fleet.Limits{Downtime: time.Hour}, fleet.StopAndCopy, "all memory of j1g0"},
	} {
		w, _ := running(t, 1, "host1", "host2")
		w.profiled(idleProfile(w.now))
		h := w.s.Hosts["host1"]
		a := h.Facts.Abilities[fleet.VM]
		a.NoRounds = "the kernel is old"
		h.Facts.Abilities = map[fleet.Kind]fleet.Abilities{fleet.VM: a}
		w.s.Hosts["host1"] = h
		_, err := w.ask(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host2", Limits: c.limits})
		if c.mode == "" {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if m, v := w.s.Migrations["m1.j1g0"], w.s.Moves["m1"]; err != nil || m.Mode != c.mode || !strings.Contains(v.Choice, c.says) {
			t.Errorf("%s: %v, %s because %q", c.name, err, m.Mode, v.Choice)
		}
		lines, err := w.p.Explain(w.s, Subject{Host: "host1"})
		if text := strings.Join(lines, "\n"); err != nil || !strings.Contains(text, "leave by stop-and-copy only: the kernel is old.") {
			t.Errorf("%s: host1 is explained by %q, %v", c.name, text, err)
		}
	}
}

// TestHugePagesGoByPostCopyOnlyIfAsked: it is unknown whether the target has the same
// huge pages, which QEMU requires.
func TestHugePagesGoByPostCopyOnlyIfAsked(t *testing.T) {
	for asked, want := range map[fleet.Mode]fleet.Mode{"": "", fleet.PostCopy: fleet.PostCopy} {
		w, _ := running(t, 1, "host1", "host2")
		w.profiled(wild(w.now))
		j := w.s.Jobs["j1"]
		j.Spec.Tune.Huge = true
		w.s.Jobs["j1"] = j
		_, err := w.ask(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host2", Limits: fleet.Limits{BytesPerSecond: 100 << 20, Mode: asked}})
		if got := w.s.Migrations["m1.j1g0"].Mode; (err != nil) != (want == "") || got != want {
			t.Errorf("asked for %q it goes by %q, %v", asked, got, err)
		}
	}
}

// TestPostCopyFindsHosts: if the first choice does not support post-copy, another host
// does; a drain goes on anyway.
func TestPostCopyFindsHosts(t *testing.T) {
	w, _ := running(t, 1, "host1", "host2", "host3")
	w.profiled(wild(w.now))
	w.cannotPostCopy("host2")
	f, err := w.p.Foresee(w.s, fleet.Request{By: fleet.Caller{Admin: true}, Verb: fleet.Migrate, Guest: "j1g0"})
	if err != nil || len(f.Migrations) != 1 || f.Migrations[0].To != "host3" || !strings.Contains(strings.Join(f.Notes, "\n"), "post-copy: by pre-copy") {
		t.Fatalf("%+v, %v", f, err)
	}
	w.cannotPostCopy("host3")
	if lines, err := w.p.Explain(w.s, Subject{Guest: "j1g0"}); err != nil || !strings.Contains(strings.Join(lines, "\n"), "A move of it would be refused: by pre-copy") {
		t.Errorf("explained %q, %v", lines, err)
	}
	f, err = w.p.Foresee(w.s, fleet.Request{By: fleet.Caller{Admin: true}, Verb: fleet.Drain, Host: "host1"})
	w.must(fleet.Request{Verb: fleet.Drain, Host: "host1"})
	m, v := w.s.Migrations["m1.j1g0"], w.s.Moves["m1"]
	if err != nil || len(f.Migrations) != 1 || m.Mode != fleet.PreCopy || !strings.Contains(v.Choice, "tried all the same") {
		t.Errorf("%+v, %v, %s because %q", f, err, m.Mode, v.Choice)
	}
}

func TestPostCopyGoesThroughEveryPhase(t *testing.T) {
	w, _ := running(t, 1, "host1", "host2")
	w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", Limits: fleet.Limits{Mode: fleet.PostCopy}})
	for i := 0; w.s.Migrations["m1.j1g0"].Phase != fleet.PostCopying; i++ {
		for !w.answer(len(w.wire) - 1 - i%len(w.wire)) {
			i++
		}
	}
	// A restarted controller does not know the hosts' abilities yet.
	forgetful := w.s
	forgetful.Hosts = maps.Clone(w.s.Hosts)
	for id, h := range forgetful.Hosts {
		h.Facts = fleet.Facts{}
		forgetful.Hosts[id] = h
	}
	for _, s := range []fleet.Snapshot{w.s, forgetful} {
		if l := Task(s, fleet.Order{Guest: "j1g0", Migration: "m1.j1g0"}).Limits; !l.Preempt || l.Mode != fleet.PostCopy {
			t.Errorf("limits %+v", l)
		}
	}
	if _, err := w.ask(fleet.Request{Verb: fleet.CancelMove, Move: "m1"}); err == nil || !strings.Contains(err.Error(), "run at their targets already") {
		t.Errorf("cancelled: %v", err)
	}
	if lines, err := w.p.Explain(w.s, Subject{Guest: "j1g0"}); err != nil || !strings.Contains(strings.Join(lines, "\n"), "If that host fails before all of it has arrived, the guest is lost") {
		t.Errorf("explained %q, %v", lines, err)
	}
	w.answerAll()
	want := []fleet.Verb{fleet.Receive, fleet.Copy, fleet.Switch, fleet.Activate, fleet.Fetch, fleet.Retire}
	if got := w.verbs("j1g0"); !reflect.DeepEqual(got, want) {
		t.Errorf("orders: %v", got)
	}
	if g := w.s.Guests["j1g0"]; g.Home != "host2" || g.State != fleet.GuestRunning {
		t.Errorf("guest: %+v", g)
	}
}

// TestPostCopyLosesItsSource: the guest can never be complete; its job fails and is
// cleaned up.
func TestPostCopyLosesItsSource(t *testing.T) {
	w, j := running(t, 1, "host1", "host2")
	w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", Limits: fleet.Limits{Mode: fleet.PostCopy}})
	for w.s.Migrations["m1.j1g0"].Phase != fleet.PostCopying {
		for i := range w.wire {
			if w.answer(i) {
				break
			}
		}
	}
	delete(w.guests["host1"], "j1g0") // its process was killed
	w.answerAll()
	if m := w.s.Migrations["m1.j1g0"]; m.Phase != fleet.Lost || !strings.Contains(m.Cause, "never be whole") {
		t.Errorf("migration: %+v", m)
	}
	if job := w.s.Jobs[j]; job.State != fleet.JobEnded || job.Result != fleet.JobFailed || len(w.guests["host2"]) != 0 {
		t.Errorf("job: %+v, left %v", job, w.guests)
	}
}

// A target that hangs because its source is gone answers nothing. The guest is given up,
// but only once the source is connected.
func TestPostCopyTargetThatNeverAnswers(t *testing.T) {
	w, j := running(t, 1, "host1", "host2")
	w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", Limits: fleet.Limits{Mode: fleet.PostCopy}})
	for w.s.Migrations["m1.j1g0"].Phase != fleet.Activating {
		for i := range w.wire {
			if w.answer(i) {
				break
			}
		}
	}
	w.tick(6 * time.Minute) // no answers: w.answer is not called
	if m := w.s.Migrations["m1.j1g0"]; m.Phase != fleet.Activating {
		t.Fatalf("given up though its source has it: %+v", m)
	}
	delete(w.guests["host1"], "j1g0")
	w.silent["host1"] = true
	w.tick(6 * time.Minute)
	if m := w.s.Migrations["m1.j1g0"]; m.Phase != fleet.Activating {
		t.Fatalf("given up before the source was reported to have lost it: %+v", m)
	}
	w.reconnect("host1")
	w.tick(time.Minute)
	if m := w.s.Migrations["m1.j1g0"]; m.Phase != fleet.Lost || !strings.Contains(m.Cause, "has lost the guest's remaining memory") {
		t.Errorf("migration: %+v", m)
	}
	if job := w.s.Jobs[j]; job.State == fleet.JobRunning {
		t.Errorf("job: %+v", job)
	}
}
