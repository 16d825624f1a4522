package planner

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/decide/desired"
	"pagurus/fleet"
)

// selfish is after how long a guest that was suspended for a checkpoint runs on by itself, when nobody says that it may.
const selfish = 15 * time.Second

// failover has another controller lead, after nobody did for a while. What was sent and not answered is lost with the one before;
// it knows of hosts what they say as they call, one after the other.
func (w *world) failover(away time.Duration) {
	w.t.Helper()
	facts := map[fleet.HostID]fleet.Facts{}
	for id, h := range w.s.Hosts {
		facts[id] = h.Facts
		w.cut(id)
		h.Facts = fleet.Facts{}
		w.s.Hosts[id] = h
	}
	if away > selfish {
		for g, at := range w.points.guests {
			if at == "cut" {
				w.points.guests[g], w.guests[w.s.Guests[g].Home][g] = "void", fleet.Running
			}
		}
	}
	w.now = w.now.Add(away)
	w.s.LedSince = w.now
	_, _ = w.step(fleet.Tick{At: w.now})
	for _, id := range slices.Sorted(maps.Keys(facts)) {
		h := w.s.Hosts[id]
		h.Facts = facts[id]
		w.s.Hosts[id] = h
		w.reconnect(id)
		_, _ = w.step(fleet.Tick{At: w.now})
	}
}

// tale is something that takes many orders.
type tale struct {
	name  string
	begin func(w *world)                   // asks for it
	ends  func(w *world, soon bool) string // says what is wrong with how it ended, where the next one leads soon or not; empty: nothing
	over  func(w *world) bool
}

// until answers n orders, and ticks where there is none. false: it was over before that.
func (w *world) until(n int, over func(*world) bool) bool {
	w.t.Helper()
	for idle := 0; idle < 60; {
		i := w.next()
		switch {
		case i >= 0 && n == 0:
			return true
		case i >= 0:
			w.answer(i)
			n--
		case over(w):
			return false
		default:
			w.tick(time.Second)
			idle++
		}
	}
	w.t.Fatalf("it never ends: %+v", w.s)
	return false
}

// TestLeaderDiesAtEveryOrder: in moves of both kinds and modes, of one guest and of gangs, in the making of checkpoints, in a job's going
// on from one, the controller that leads dies at every order: before the order arrives, or after it was carried out. Another leads
// after ten seconds, or after so long that guests have run on by themselves. Everything ends as it should, and no guest
// is lost, doubled, or left behind. Invariants are looked at after each step.
func TestLeaderDiesAtEveryOrder(t *testing.T) {
	aways, every := []time.Duration{10 * time.Second, 2 * selfish}, 1
	if testing.Short() { // of each kind of death every third one
		aways, every = aways[:1], 3
	}
	for _, c := range tales() {
		if testing.Short() && !strings.HasPrefix(c.name, string(fleet.VM)) {
			continue
		}
		for _, carried := range []bool{false, true} {
			for _, away := range aways {
				t.Run(fmt.Sprintf("%s_%v_%s", c.name, carried, away), func(t *testing.T) {
					t.Parallel()
					n := 0
					if carried {
						n = every - 1
					}
					for ; ; n += every {
						if !leaderDies(t, c, n, carried, away) {
							break
						}
					}
					if n < 3 {
						t.Errorf("there were %d orders", n)
					}
				})
			}
		}
	}
}

// leaderDies tells a tale in which the leader dies at the n-th order. false: there are no so many.
func leaderDies(t *testing.T, c tale, n int, carried bool, away time.Duration) bool {
	t.Helper()
	w := newWorld(t, "host1", "host2", "host3", "host4")
	for id, h := range w.s.Hosts {
		h.Facts.Abilities[fleet.Container] = fleet.Abilities{Live: true, PostCopy: true, Checkpoint: true}
		w.s.Hosts[id] = h
	}
	c.begin(w)
	if !w.until(n, c.over) {
		return false
	}
	o := w.wire[w.next()]
	if carried {
		w.carry(o)
	}
	w.failover(away)
	for range 40 {
		w.answerAll()
		w.tick(time.Second)
	}
	w.answerAll()
	wrong := c.ends(w, away < selfish)
	copies := 0
	for _, here := range w.guests {
		copies += len(here)
	}
	for _, g := range w.s.Guests {
		if !g.State.Ended() && (g.State != fleet.GuestRunning || w.guests[g.Home][g.ID] != fleet.Running) {
			wrong += fmt.Sprintf(" guest %+v", g)
		}
		if !g.State.Ended() {
			copies--
		}
	}
	if copies != 0 || len(w.points.guests) > 0 || len(w.missing) > 0 {
		wrong += fmt.Sprintf(" left: %v, %v, %v", w.guests, w.points.guests, w.missing)
	}
	if wrong != "" {
		t.Errorf("order %d, %s to %s %s: %s", n, o.Host, o.Verb, o.Guest, wrong)
	}
	return true
}

func tales() (out []tale) {
	kept := func(w *world, id fleet.CheckpointID, want ...fleet.CheckpointPhase) string {
		c, parts := w.s.Checkpoints[id], 0
		for name := range w.points.vaults {
			if strings.HasPrefix(name, string(id)+"/") {
				parts++
			}
		}
		if !slices.Contains(want, c.Phase) || (c.Phase == fleet.Kept) != (parts == 2) || parts == 1 {
			return fmt.Sprintf("%s is %s: %s; vaults have %v", id, c.Phase, c.Cause, w.points.vaults)
		}
		return ""
	}
	made := func(w *world, id fleet.CheckpointID, soon bool) string {
		if soon {
			return kept(w, id, fleet.Kept)
		}
		return kept(w, id, fleet.Kept, fleet.Void)
	}
	for _, kind := range []fleet.Kind{fleet.VM, fleet.Container} {
		is := func(s *fleet.JobSpec) { s.Kind, s.On = kind, []fleet.HostID{"host1", "host2"} }
		for _, mode := range []fleet.Mode{fleet.PreCopy, fleet.PostCopy, fleet.StopAndCopy} {
			for guests := 1; guests <= 2; guests++ {
				out = append(out, tale{fmt.Sprintf("%s_%s_%d", kind, mode, guests), func(w *world) {
					j := w.running(guests, is)
					w.must(fleet.Request{Verb: fleet.Migrate, Job: j, To: "host3", Limits: fleet.Limits{Mode: mode}})
				}, func(w *world, _ bool) string {
					for _, m := range w.s.Migrations {
						if m.Phase != fleet.Finished {
							return fmt.Sprintf("%s is %s: %s", m.ID, m.Phase, m.Cause)
						}
					}
					return ""
				}, func(w *world) bool {
					return !slices.ContainsFunc(slices.Collect(maps.Values(w.s.Migrations)), func(m fleet.Migration) bool { return !m.Phase.Ended() })
				}})
			}
		}
		making := func(w *world) {
			j := w.running(2, func(s *fleet.JobSpec) { is(s); s.Restarts = 1 })
			w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j})
		}
		ended := func(w *world) bool { return w.s.Checkpoints["j1c1"].Phase == fleet.Kept }
		out = append(out, tale{fmt.Sprintf("%s_checkpoint", kind), making, func(w *world, soon bool) string { return made(w, "j1c1", soon) }, ended})
		out = append(out, tale{fmt.Sprintf("%s_removal", kind), func(w *world) {
			making(w)
			w.answerAll()
			w.must(fleet.Request{Verb: fleet.RemoveCheckpoint, Checkpoint: "j1c1"})
			w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: "j1"})
		}, func(w *world, soon bool) string { return kept(w, "j1c1", fleet.Removed) + made(w, "j1c2", soon) }, func(w *world) bool {
			return w.s.Checkpoints["j1c1"].Phase == fleet.Removed && w.s.Checkpoints["j1c2"].Phase == fleet.Kept
		}})
		again := func(w *world) bool { j := w.s.Jobs["j1"]; return j.Incarnation == 1 && j.State == fleet.JobRunning }
		out = append(out, tale{fmt.Sprintf("%s_restart", kind), func(w *world) {
			making(w)
			w.answerAll()
			w.must(fleet.Request{Verb: fleet.Restart, Job: "j1"})
		}, func(w *world, _ bool) string {
			if j := w.s.Jobs["j1"]; !again(w) || j.From != "j1c1" {
				return fmt.Sprintf("%s is %s, from %s: %s", j.ID, j.State, j.From, j.Cause)
			}
			return ""
		}, again})
	}
	return out
}

// A controller that leads after another knows where everything is that Wanted names, before any host has called.
func TestNextLeaderWantsTheSame(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	w.running(2, nil)
	before := map[fleet.HostID]fleet.Wanted{}
	for id := range w.s.Hosts {
		before[id] = desired.Wanted(w.s, id)
	}
	w.failover(10 * time.Second)
	for id := range w.s.Hosts {
		if is := desired.Wanted(w.s, id); len(is.Networks) != len(before[id].Networks) || !slices.Equal(is.Guests, before[id].Guests) {
			t.Errorf("%s should have %+v, and before %+v", id, is, before[id])
		}
	}
}
