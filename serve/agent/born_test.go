package agent

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// bornAt is a task of a job that was submitted at some time.
func bornAt(verb fleet.Verb, gen uint64, born int64) fleet.Task {
	t := task(verb, gen)
	t.Order.Born, t.Guest.Born, t.Job.Born = born, born, born
	return t
}

// A store was put back from an older copy, and gives the number of a job that has ended to
// another's job: this one runs, and no answer about the first is given for it.
func TestNumberGivenAgain(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		run := bornAt(fleet.Run, 1, 1000)
		r.do(bornAt(fleet.Start, 1, 1000))
		r.send(bornAt(fleet.Watch, 1, 1000))
		r.send(run)
		r.d.guest("j1g0").finish(0)
		r.expect(run.Order, fleet.Done)
		r.do(bornAt(fleet.Stop, 1, 1000))
		if r.d.guest("j1g0") != nil {
			t.Fatal("still there")
		}
		time.Sleep(time.Minute)
		started := r.d.count("start j1g0")
		r.do(bornAt(fleet.Start, 1, 2000))
		if r.d.guest("j1g0") == nil || r.d.count("start j1g0") != started+1 {
			t.Fatal("the new job's guest was not started")
		}
		again := bornAt(fleet.Run, 1, 2000)
		r.send(again)
		time.Sleep(time.Second)
		r.d.guest("j1g0").finish(3)
		if rep := r.expect(again.Order, fleet.Done); rep.Exit == nil || rep.Exit.Code != 3 {
			t.Errorf("run of the new job: %+v", rep)
		}
		late := bornAt(fleet.Start, 1, 1000)
		late.Order.Attempt = 1
		r.send(late)
		r.expect(late.Order, fleet.Failed)
	})
}

// The first job's guest still runs: it is not taken for the second one's.
func TestNumberGivenAgainWhileTheGuestRuns(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(bornAt(fleet.Start, 7, 1000))
		before := r.d.guest("j1g0")
		r.do(bornAt(fleet.Start, 1, 2000))
		if now := r.d.guest("j1g0"); now == nil || now == before {
			t.Errorf("the guest of the earlier job is taken for the new one's: %v", now)
		}
		entry, err := r.a.journal.Read("j1g0")
		if err != nil || entry.Born != 2000 || entry.Stale || entry.LastGen != 1 {
			t.Errorf("journal: %+v, %v", entry, err)
		}
	})
}

// granted is a lease in memory.
type granted struct {
	mu      sync.Mutex
	renewed []fleet.Lease
	asked   int64
	stopped fleet.GuestID
}

func (g *granted) Ask() fleet.Lease {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked++
	return fleet.Lease{Length: time.Minute, Asked: g.asked}
}

func (g *granted) Renew(l fleet.Lease) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.renewed = append(g.renewed, l)
	return nil
}

func (g *granted) Stopped(id fleet.GuestID) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if id == g.stopped {
		return "this host had not heard the controller"
	}
	return ""
}

// Every message of facts asks for the lease, what the controller grants is renewed, and a guest
// that ended with a lease is reported as that.
func TestLeaseIsAskedForAndRenewed(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(bornAt(fleet.Start, 1, 1000))
		watch := bornAt(fleet.Watch, 1, 1000)
		r.send(watch)
		time.Sleep(5 * time.Second)
		asked := r.facts().Lease
		if asked.Length != time.Minute || asked.Asked < 4 {
			t.Fatalf("asked: %+v", asked)
		}
		r.s.down <- wire.Down{Lease: &asked}
		synctest.Wait()
		r.lease.mu.Lock()
		if len(r.lease.renewed) != 1 || r.lease.renewed[0] != asked {
			t.Errorf("renewed: %+v", r.lease.renewed)
		}
		r.lease.stopped = "j1g0"
		r.lease.mu.Unlock()
		r.d.end("j1g0")
		if rep := r.expect(watch.Order, fleet.Done); !strings.Contains(rep.Cause, "was stopped on host1: this host had not heard") {
			t.Errorf("cause: %s", rep.Cause)
		}
	})
}

// An order of an older generation is refused, and says what the host has seen: a controller whose store was put back
// from a copy learns so that it is old.
func TestAnOrderOfAnOlderGenerationSaysWhatWasSeen(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 3))
		for range 2 {
			old := task(fleet.Watch, 2)
			r.send(old)
			if rep := r.expect(old.Order, fleet.Failed); rep.Seen != 3 {
				t.Errorf("it is %+v", rep)
			}
		}
		if r.d.guest("j1g0") == nil {
			t.Error("the guest is gone")
		}
	})
}

// What a driver says of a guest that came by a move, whose generation the driver does not know, is passed on.
func TestFactsOfAGuestThatCame(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.a.mu.Lock()
		r.a.present["j1g0"] = presence{fleet.VM, fleet.GuestFacts{Gen: 1, Run: fleet.Running, Standby: "there was none"}}
		r.a.slots["j1g0"] = &guestSlot{guest: "j1g0", entry: journalEntry{LastGen: 2}}
		r.a.mu.Unlock()
		if f := r.a.facts().Guests["j1g0"]; f.Gen != 2 || f.Standby != "there was none" {
			t.Errorf("%+v", f)
		}
	})
}
