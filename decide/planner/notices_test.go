package planner

import (
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// notice has a host say what stands.
func (w *world) notice(host fleet.HostID, all ...fleet.EndNotice) {
	h := w.s.Hosts[host]
	h.Facts.Notices = &fleet.EndNotices{Pending: all}
	w.s.Hosts[host] = h
}

func (w *world) spot(in time.Duration) fleet.EndNotice {
	return fleet.EndNotice{Kind: fleet.AWSNotice, ID: "x", Says: "Amazon takes it back", At: w.now.Add(in), Since: w.now}
}

// turn lets a second pass and has all answered.
func (w *world) turn(seconds int) {
	for range seconds {
		w.tick(time.Second)
		w.answerAll()
	}
}

func (w *world) explained(about Subject) string {
	w.t.Helper()
	lines, err := w.p.Explain(w.s, about)
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	return strings.Join(lines, "\n")
}

// Guests leave a host that goes away, also for a person who drains it, and a notice that is withdrawn undoes its own drain alone.
func TestNoticeEmptiesHost(t *testing.T) {
	for _, byHand := range []bool{false, true} {
		w, j := running(t, 2, "host1", "host2", "host3")
		home := w.s.Guests["j1g0"].Home
		if byHand {
			w.must(fleet.Request{Verb: fleet.Drain, Host: home})
		}
		w.notice(home, w.spot(2*time.Minute))
		w.turn(5)
		h, g := w.s.Hosts[home], w.s.Guests["j1g0"]
		if h.State != fleet.HostDraining || h.ForNotice == byHand || h.EmptyBy.IsZero() || g.Home == home || w.s.Jobs[j].State != fleet.JobRunning {
			t.Fatalf("host: %+v, guest: %+v", h, g)
		}
		if why := w.s.Moves["m1"].Why; !byHand && !strings.Contains(why, "Amazon takes it back at") {
			t.Errorf("the move is made since %s", why)
		}
		for _, about := range []Subject{{Job: j}, {Host: home}} {
			said := w.explained(about)
			if !strings.Contains(said, "Move m1 took j1g0 from "+string(home)+" to "+string(g.Home)) || !byHand && !strings.Contains(said, "UTC (notice by aws).") {
				t.Errorf("explained:\n%s", said)
			}
		}
		if said := w.explained(Subject{Host: home}); !strings.Contains(said, "A notice by aws stands: Amazon takes it back in 1m5") {
			t.Errorf("explained:\n%s", said)
		}
		r := submission(1)
		r.ID, r.Spec.On, r.Now = "b", []fleet.HostID{home}, true
		if _, err := w.ask(r); err == nil || !strings.Contains(err.Error(), "goes away soon") {
			t.Errorf("a job begins there: %v", err)
		}
		w.notice(home)
		w.turn(2)
		if h := w.s.Hosts[home]; (h.State == fleet.HostDraining) != byHand || h.ForNotice || !h.EmptyBy.IsZero() {
			t.Errorf("withdrawn: %+v", h)
		}
	}
}

// A notice that is withdrawn takes back moves that have not switched.
func TestWithdrawnNoticeTakesMovesBack(t *testing.T) {
	w, _ := running(t, 1, "host1", "host2")
	home := w.s.Guests["j1g0"].Home
	w.notice(home, w.spot(time.Hour))
	w.tick(2 * time.Second)
	if g := w.s.Guests["j1g0"]; g.State != fleet.GuestMoving {
		t.Fatalf("%+v", g)
	}
	w.notice(home)
	w.turn(5)
	if g := w.s.Guests["j1g0"]; g.State != fleet.GuestRunning || g.Home != home {
		t.Errorf("%+v", g)
	}
}

// A person has the host take guests in spite of a notice, until there is another.
func TestPersonWaivesNotice(t *testing.T) {
	w, _ := running(t, 1, "host1", "host2")
	n := w.spot(time.Hour)
	w.notice("host2", n)
	w.turn(2)
	w.must(fleet.Request{Verb: fleet.Undrain, Host: "host2"})
	w.turn(2)
	if h := w.s.Hosts["host2"]; h.State != fleet.HostUp || !strings.Contains(w.explained(Subject{Host: "host2"}), "in spite of that") {
		t.Fatalf("%+v", h)
	}
	other := n
	other.ID = "y"
	w.notice("host2", n, other)
	w.turn(2)
	if h := w.s.Hosts["host2"]; !h.ForNotice {
		t.Errorf("%+v", h)
	}
}

// A checkpoint whose like was never made is taken to be slow, and slower on slow hosts, over slow links and of emulated guests.
func TestFirstCheckpointIsForeseenSlow(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		change func(*world)
		want   time.Duration
	}{
		"a usual host":  {func(*world) {}, 45 * time.Second}, // 600 MiB at half of 30 MiB a second, and 5 s
		"a slow host":   {func(w *world) { w.speed("host1", usualCopy/3, 0) }, 125 * time.Second},
		"a fast host":   {func(w *world) { w.speed("host1", 2*usualCopy, 0) }, 45 * time.Second},
		"a slow vault":  {func(w *world) { w.speed("host2", usualCopy/3, 0) }, 125 * time.Second},
		"a very slow":   {func(w *world) { w.speed("host1", 1, 0) }, (5 + 40*slowestSave) * time.Second},
		"a slow link":   {func(w *world) { w.speed("host2", usualCopy, 20*mib) }, 125 * time.Second},
		"a usual link":  {func(w *world) { w.speed("host2", usualCopy, 125e6) }, 45 * time.Second},
		"little memory": {func(w *world) { w.resident("j1g0", 150*mib) }, 15 * time.Second},
		"emulated": {func(w *world) {
			for kind, a := range w.s.Hosts["host1"].Facts.Abilities {
				a.Emulated = "there is no KVM"
				w.s.Hosts["host1"].Facts.Abilities[kind] = a
			}
		}, 55 * time.Second},
		"it was measured":                {func(w *world) { w.kept("j1", 10*time.Second, 600*mib) }, 20 * time.Second},
		"another's was measured":         {func(w *world) { w.kept("j7", 25*time.Second, 300*mib) }, 65 * time.Second}, // 300 MiB in 20 s, so 600 in 40, and half of that more
		"another's was measured as fast": {func(w *world) { w.kept("j7", 6*time.Second, 6000*mib) }, 20 * time.Second}, // no faster than 60 MiB a second
	} {
		w := newWorld(t, "host1", "host2")
		j := w.running(1, func(s *fleet.JobSpec) { s.Need.MemoryBytes, s.On = 600*mib, []fleet.HostID{"host1"} })
		c.change(w)
		d := (&explainer{p: w.p, s: w.s}).draft()
		got := d.savesIn(w.s.Jobs[j], []fleet.CheckpointPart{{Guest: "j1g0", Host: "host1", Vault: "host2"}})
		d.free()
		if (got - c.want).Abs() > time.Second {
			t.Errorf("%s: %s, and not %s", name, got, c.want)
		}
	}
}

func (w *world) speed(id fleet.HostID, copies, link float64) {
	h := w.s.Hosts[id]
	h.Facts.Speed = &fleet.Speed{CopyBytesPerSecond: copies, LinkBytesPerSecond: link}
	w.s.Hosts[id] = h
}

func (w *world) resident(id fleet.GuestID, bytes int64) {
	h := w.s.Hosts[w.s.Guests[id].Home]
	h.Facts.Guests = map[fleet.GuestID]fleet.GuestFacts{id: {Run: fleet.Running, ResidentBytes: bytes}}
	w.s.Hosts[h.ID] = h
}

// kept adds a checkpoint of a job that took so long for so much on host1, most of it before its cut.
func (w *world) kept(id fleet.JobID, took time.Duration, bytes int64) {
	c := fleet.Checkpoint{ID: fleet.CheckpointID(id) + "c1", Job: id, Phase: fleet.Kept, WasKept: true, Begun: w.now.Add(-took), Cut: w.now.Add(-time.Second), Ended: w.now,
		Guests: []fleet.CheckpointPart{{Guest: fleet.GuestID(id) + "g0", Host: "host1", Vault: "host2", Bytes: bytes}, {Guest: fleet.GuestID(id) + "g1", Host: "host2", Vault: "host1", Bytes: bytes}}}
	w.s.Checkpoints[c.ID] = c
}

// Where no host has room a checkpoint is made in time, not in the vault of the host that goes away, and the job ends there before the end and goes on
// from it when there is room.
func TestNoticeSavesWhatCannotMove(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	j := w.running(2, func(s *fleet.JobSpec) { s.Need.MemoryBytes = 1200 << 20 })
	w.notice("host1", w.spot(3*time.Minute))
	w.turn(10)
	if said := w.explained(Subject{Host: "host1"}); !strings.Contains(said, "A checkpoint of j1 begins in") || !strings.Contains(said, "no host has room") {
		t.Errorf("explained:\n%s", said)
	}
	if len(w.s.Checkpoints) > 0 {
		t.Fatalf("it was made too early: %+v", w.s.Checkpoints)
	}
	w.turn(140)
	c := w.phase("j1c1", fleet.Kept)
	for _, p := range c.Guests {
		if p.Vault != "host2" {
			t.Errorf("%s is kept on %s", p.Guest, p.Vault)
		}
	}
	if w.s.Jobs[j].State != fleet.JobRunning {
		t.Fatalf("it ended too early: %+v", w.s.Jobs[j])
	}
	for about, says := range map[Subject]string{{Job: j}: "Checkpoint j1c1 was begun for a notice", {Host: "host1"}: "Checkpoint j1c1 was made"} {
		if said := w.explained(about); !strings.Contains(said, says) || !strings.Contains(said, "Amazon takes it back at") || !strings.Contains(said, "(notice by aws).") {
			t.Errorf("explained:\n%s", said)
		}
	}
	w.turn(25)
	if is := w.s.Jobs[j]; is.State != fleet.JobPending || is.From != "j1c1" || len(w.s.Checkpoints) != 1 {
		t.Fatalf("%+v, %d checkpoints", is, len(w.s.Checkpoints))
	}
	if got := len(w.guests["host1"]); got > 0 {
		t.Errorf("host1 has %d guests", got)
	}
	w.notice("host1") // it was switched off, and is on again
	w.turn(5)
	if is := w.s.Jobs[j]; is.State != fleet.JobRunning || is.From != "j1c1" {
		t.Errorf("%+v", is)
	}
}
