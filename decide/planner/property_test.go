package planner

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pagurus/fleet"
)

// Random sequences of requests, answers, failures, lost orders, silent hosts, dying
// guests and controller restarts. world.sound holds after every step. When all hosts are
// well and all jobs cancelled, nothing is left.
func TestAnythingInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, "host1", "host2", "host3")
		requests := 0
		some := func(ids ...string) string { return rapid.SampledFrom(ids).Draw(t, "which") }
		guest := func() fleet.GuestID {
			ids := slices.Sorted(maps.Keys(w.s.Guests))
			if len(ids) == 0 {
				return "j1g0"
			}
			return rapid.SampledFrom(ids).Draw(t, "guest")
		}
		host := func() fleet.HostID { return fleet.HostID(some("host1", "host2", "host3")) }
		onWire := func(do func(int)) func(*rapid.T) {
			return func(*rapid.T) {
				if len(w.wire) > 0 {
					do(rapid.IntRange(0, len(w.wire)-1).Draw(t, "order"))
				}
			}
		}
		lose := func(i int) { w.wire = slices.Delete(w.wire, i, i+1) }
		actions := map[string]func(*rapid.T){
			"submit": func(*rapid.T) {
				requests++
				r := submission(rapid.IntRange(1, 3).Draw(t, "guests"))
				r.ID = fleet.RequestID(fmt.Sprint(requests))
				r.Spec.Grow = rapid.IntRange(0, 3).Draw(t, "grow")
				r.Spec.Restarts = rapid.IntRange(0, 2).Draw(t, "restarts")
				r.Spec.Time = time.Duration(rapid.IntRange(0, 1).Draw(t, "limit")) * 30 * time.Second
				r.Spec.Need.MemoryBytes <<= 2 * rapid.IntRange(0, 1).Draw(t, "large")
				_, _ = w.ask(r)
			},
			"grow": func(*rapid.T) {
				requests++
				_, _ = w.ask(fleet.Request{Verb: fleet.Grow, ID: fleet.RequestID(fmt.Sprint(requests)), Job: fleet.JobID(some("j1", "j2", "j3")),
					Count: rapid.IntRange(1, 2).Draw(t, "count"), Within: time.Duration(rapid.IntRange(1, 60).Draw(t, "within")) * time.Second})
			},
			"migrate": func(*rapid.T) { _, _ = w.ask(fleet.Request{Verb: fleet.Migrate, Guest: guest()}) },
			"gang": func(*rapid.T) {
				r := fleet.Request{Verb: fleet.Migrate, Guests: []fleet.GuestID{guest(), guest(), guest()}}
				r.Limits.Mode = rapid.SampledFrom([]fleet.Mode{"", fleet.PreCopy, fleet.PostCopy, fleet.StopAndCopy}).Draw(t, "mode")
				r.Limits.Deadline = time.Duration(rapid.IntRange(0, 30).Draw(t, "deadline")) * time.Second
				_, _ = w.ask(r)
			},
			"all": func(*rapid.T) {
				_, _ = w.ask(fleet.Request{Verb: fleet.Migrate, Job: fleet.JobID(some("j1", "j2", "j3")), To: host()})
			},
			"cancel move": func(*rapid.T) {
				_, _ = w.ask(fleet.Request{Verb: fleet.CancelMove, Move: fleet.MoveID(some("m1", "m2", "m3", "m4", "m5"))})
			},
			"cancel": func(*rapid.T) {
				_, _ = w.ask(fleet.Request{Verb: fleet.Cancel, Job: fleet.JobID(some("j1", "j2", "j3"))})
			},
			"remove": func(*rapid.T) {
				_, _ = w.ask(fleet.Request{Verb: fleet.RemoveJob, Job: fleet.JobID(some("j1", "j2", "j3"))})
			},
			"drain":   func(*rapid.T) { _, _ = w.ask(fleet.Request{Verb: fleet.Drain, Host: host()}) },
			"undrain": func(*rapid.T) { _, _ = w.ask(fleet.Request{Verb: fleet.Undrain, Host: host()}) },
			"answer":  onWire(func(i int) { w.answer(i) }),
			"more":    onWire(func(i int) { w.answer(i) }),
			"together": onWire(func(i int) {
				w.together(slices.Clone(w.wire[i:min(len(w.wire), i+rapid.IntRange(1, 4).Draw(t, "answers"))]))
			}),
			"lose":    onWire(lose),
			"unheard": onWire(func(i int) { w.carry(w.wire[i]); lose(i) }),
			"refuse": onWire(func(i int) {
				if o := w.wire[i]; w.canRefuse(o) {
					w.refused[o] = true
					w.answer(i)
				}
			}),
			"exit": func(*rapid.T) { w.exited[fleet.JobID(some("j1", "j2", "j3"))] = true },
			"die":  func(*rapid.T) { g := guest(); w.die(g) },
			"owner": func(*rapid.T) {
				w.owner(host(), rapid.SampledFrom([]fleet.OwnerState{fleet.OwnerAbsent, fleet.OwnerReturning, fleet.OwnerPresent, fleet.OwnerLeaving}).Draw(t, "state"))
			},
			"tick": func(*rapid.T) { w.tick(time.Second) },
			"wait": func(*rapid.T) { w.tick(20 * time.Second) },
			"days": func(*rapid.T) { w.sleep(keepMoves) },
			"cut":  func(*rapid.T) { w.cut(host()) },
			"mend": func(*rapid.T) { w.reconnect(host()) },
			"restart": func(*rapid.T) {
				w.s.LedSince = w.now
				for _, id := range slices.Sorted(maps.Keys(w.guests)) {
					if !w.silent[id] {
						w.reconnect(id)
					}
				}
			},
		}
		var backup fleet.Snapshot
		actions["back up"] = func(*rapid.T) { backup = w.s }
		actions["restore"] = func(*rapid.T) {
			if backup.Cluster.NextJob > 0 {
				w.restore(backup)
				w.reconnect(host())
			}
		}
		t.Repeat(actions)
		w.mendAll()
	})
}

// canRefuse reports whether a host can truthfully promise that an order had no effect and
// that the guest is where it was.
func (w *world) canRefuse(o fleet.Order) bool {
	switch o.Verb {
	case fleet.Watch, fleet.Revert:
		return w.guests[o.Host][o.Guest] == ""
	case fleet.Run:
		return !w.exited[o.Job]
	case fleet.Switch:
		return !w.whole[o.Peer][o.Guest]
	}
	return true
}

// die ends a guest on its host.
func (w *world) die(g fleet.GuestID) {
	for _, here := range w.guests {
		if here[g] == fleet.Running {
			delete(here, g)
		}
	}
}

// mendAll makes all hosts well, cancels all jobs, and checks that everything ends and
// nothing is left.
func (w *world) mendAll() {
	w.t.Helper()
	for _, id := range slices.Sorted(maps.Keys(w.guests)) {
		w.reconnect(id)
	}
	for _, id := range slices.Sorted(maps.Keys(w.s.Jobs)) {
		w.must(fleet.Request{Verb: fleet.Cancel, Job: id})
	}
	for range 300 {
		w.answerAll()
		w.tick(2 * time.Second)
	}
	for _, j := range w.s.Jobs {
		if j.State != fleet.JobEnded {
			w.t.Fatalf("%s is still %s: %+v", j.ID, j.State, Pending(w.s))
		}
	}
	for id, here := range w.guests {
		if len(here) != 0 {
			w.t.Fatalf("%s still has %v", id, here)
		}
	}
	if left := Pending(w.s); len(left) != 0 {
		w.t.Fatalf("still waits for %v", left)
	}
}
