package planner

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// owner sets the owner's state that a host's sensors report.
func (w *world) owner(id fleet.HostID, s fleet.OwnerState) {
	h := w.s.Hosts[id]
	h.Facts.Owner = &fleet.Owner{State: s, Present: s.There(), Since: w.now}
	w.s.Hosts[id] = h
}

// copies answers orders until a copy is running.
func (w *world) copies() {
	w.t.Helper()
	for i := 0; i < len(w.wire); i++ {
		if w.wire[i].Verb == fleet.Receive {
			w.answer(i)
			i = -1
		}
	}
}

// A host drains for its owner who stays, and takes guests again when they go.
func TestOwnerStays(t *testing.T) {
	w := spread(t, 2, "host1")
	for _, s := range []fleet.OwnerState{fleet.OwnerAbsent, fleet.OwnerReturning, fleet.OwnerAbsent} {
		w.owner("host1", s)
		w.tick(time.Minute)
	}
	if len(w.s.Moves) != 0 {
		t.Fatalf("an owner who only looked in: %+v", w.s.Moves)
	}
	w.owner("host1", fleet.OwnerPresent)
	w.tick(time.Second)
	v := w.s.Moves["m1"]
	if h := w.s.Hosts["host1"]; h.State != fleet.HostDraining || !h.ForOwner || len(v.Migrations) != 2 || v.Why != "the owner of host1 is there" {
		t.Fatalf("%+v %+v", h, w.s.Moves)
	}
	w.answerAll()
	if len(w.guests["host1"]) != 0 {
		t.Errorf("still there: %v", w.guests["host1"])
	}
	if _, err := w.ask(fleet.Request{Verb: fleet.Undrain, Host: "host1"}); err == nil || !strings.Contains(err.Error(), "its owner is there") {
		t.Errorf("undrain against the owner: %v", err)
	}
	to := fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host1"}
	for _, s := range []fleet.OwnerState{fleet.OwnerPresent, fleet.OwnerLeaving} {
		w.owner("host1", s)
		w.tick(time.Second)
		if _, err := w.ask(to); err == nil || !strings.Contains(err.Error(), "has its owner there") {
			t.Errorf("a guest to a host whose owner is %s: %v", s, err)
		}
	}
	w.owner("host1", fleet.OwnerAbsent)
	w.tick(time.Second)
	if h := w.s.Hosts["host1"]; h.State != fleet.HostUp || h.ForOwner {
		t.Errorf("the owner has gone: %+v", h)
	}
	w.must(to)
	w.answerAll()
	if w.s.Guests["j1g0"].Home != "host1" {
		t.Errorf("it did not come back: %+v", w.s.Guests["j1g0"])
	}
}

// leaves simulates host1's owner: they come, two guests are copied until left MiB of 512
// remain each, and they go.
func (w *world) leaves(left int64) {
	w.t.Helper()
	w.owner("host1", fleet.OwnerPresent)
	w.tick(time.Second)
	w.copies()
	h := w.s.Hosts["host1"]
	h.Facts.Copies = map[fleet.MigrationID]fleet.Progress{}
	for id, m := range w.s.Migrations {
		if m.Phase == fleet.Copying {
			h.Facts.Copies[id] = fleet.Progress{Rounds: 1, TotalBytes: 512 << 20, RemainingBytes: left << 20, BytesPerSecond: 50 << 20}
		}
	}
	w.s.Hosts["host1"] = h
	w.owner("host1", fleet.OwnerLeaving)
	w.tick(time.Second)
	for _, m := range w.s.Migrations {
		if m.Phase == fleet.Cancelling {
			w.t.Fatalf("a move is cancelled before the owner has gone: %+v", m)
		}
	}
	w.owner("host1", fleet.OwnerAbsent)
	w.tick(time.Second)
}

// If an owner goes during copies that have sent little, the guests stay.
func TestOwnerGoesMeanwhile(t *testing.T) {
	w := spread(t, 2, "host1")
	w.leaves(450)
	w.answerAll()
	if m := w.member("j1g0"); m.Phase != fleet.Aborted || len(w.guests["host1"]) != 2 ||
		!strings.HasPrefix(m.Cause, "cancelled: the owner of host1 is gone, and 900 MiB of 1024 MiB were still to be sent") {
		t.Errorf("%+v %v", m, w.guests)
	}
	w.tick(time.Hour)
	if len(w.s.Moves) != 1 {
		t.Errorf("it moves again: %+v", w.s.Moves)
	}
}

// Explain describes what a guest does for its host's owner.
func TestExplainGivingWay(t *testing.T) {
	for want, f := range map[string]fleet.GuestFacts{
		"It is suspended while the owner of host1 is there.":                    {Run: fleet.Suspended, Suspended: true, ReclaimedBytes: 1 << 30},
		"Its time slice is 3.9ms: the usual one of class gold.":                 {Run: fleet.Running, Slice: &fleet.TimeSlice{Length: 3900 * time.Microsecond, Why: "the usual one of class gold"}},
		"64 MiB of its memory are reclaimed while the owner of host1 is there.": {Run: fleet.Running, ReclaimedBytes: 64 << 20},
	} {
		w, _ := running(t, 1, "host1", "host2")
		h := w.s.Hosts["host1"]
		h.Facts.Guests = map[fleet.GuestID]fleet.GuestFacts{"j1g0": f}
		w.s.Hosts["host1"] = h
		if why, err := w.p.Explain(w.s, Subject{Guest: "j1g0"}); err != nil || !slices.Contains(why, want) {
			t.Errorf("%q, %v, want %q", why, err, want)
		}
	}
}

// Explain says that a guest is slow because of a requested cap.
func TestExplainCap(t *testing.T) {
	w, _ := running(t, 1, "host1")
	j := w.s.Jobs["j1"]
	j.Spec.Cap = 0.25
	w.s.Jobs["j1"] = j
	if why, err := w.p.Explain(w.s, Subject{Guest: "j1g0"}); err != nil || !slices.Contains(why, "It may use no more than 25 % of its CPUs (run --cap).") {
		t.Errorf("%q, %v", why, err)
	}
}

// A move that is nearly finished goes on, whatever the owner does; explain says why.
func TestOwnerGoesTooLate(t *testing.T) {
	w := spread(t, 2, "host1")
	w.leaves(50)
	why, _ := w.p.Explain(w.s, Subject{Guest: "j1g0"})
	if want := "It goes on: the owner of host1 is gone, but 100 MiB of 1024 MiB are still to be sent"; !strings.Contains(strings.Join(why, " "), want) {
		t.Errorf("%q, want %q", why, want)
	}
	for _, s := range []fleet.OwnerState{fleet.OwnerPresent, fleet.OwnerAbsent, fleet.OwnerPresent, fleet.OwnerAbsent} {
		w.owner("host1", s)
		w.tick(2 * time.Second)
	}
	w.answerAll()
	if m := w.member("j1g0"); m.Phase != fleet.Finished || len(w.s.Moves) != 1 || len(w.guests["host1"]) != 0 {
		t.Errorf("%+v %+v", m, w.s.Moves)
	}
}

// If an owner comes and goes repeatedly, guests stay once; the next time they leave.
func TestOwnerComesAndGoes(t *testing.T) {
	w := spread(t, 2, "host1")
	for range 2 {
		w.leaves(500)
		w.answerAll()
		w.tick(40 * time.Second)
	}
	if m := w.s.Migrations["m2.j1g0"]; len(w.s.Moves) != 2 || w.member("j1g0").Phase != fleet.Aborted || m.Phase != fleet.Finished {
		t.Errorf("%+v %+v", w.s.Moves, w.s.Migrations)
	}
}

// Requested moves and drains go on when the owner goes.
func TestNotForTheOwner(t *testing.T) {
	for _, r := range []fleet.Request{{Verb: fleet.Migrate, Job: "j1"}, {Verb: fleet.Drain, Host: "host1"}} {
		w := spread(t, 2, "host1")
		w.must(r)
		w.leaves(500)
		w.answerAll()
		w.tick(time.Minute)
		if len(w.guests["host1"]) != 0 || len(w.s.Moves) != 1 || w.s.Moves["m1"].Weighed != "" {
			t.Errorf("%s: %v %+v", r.Verb, w.guests, w.s.Moves)
		}
	}
}

// A move to a host whose owner comes is cancelled, unless it has begun to switch.
func TestOwnerOfATargetComes(t *testing.T) {
	w := spread(t, 1, "host1")
	w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host2"})
	w.copies()
	w.owner("host2", fleet.OwnerReturning)
	w.tick(time.Second)
	w.answerAll()
	if m := w.member("j1g0"); m.Phase != fleet.Aborted || m.Cause != "the owner of host2 has come" || w.s.Guests["j1g0"].Home != "host1" {
		t.Errorf("%+v", m)
	}
	w.owner("host2", fleet.OwnerAbsent)
	w.tick(time.Minute)
	w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host2"})
	second := func() fleet.Migration { return w.s.Migrations["m2.j1g0"] }
	for i := 0; second().Phase != fleet.Activating && i < 20; i++ {
		for i := range w.wire {
			if v := w.wire[i].Verb; v != fleet.Watch && v != fleet.Run && w.answer(i) {
				break
			}
		}
	}
	w.owner("host2", fleet.OwnerPresent)
	w.tick(time.Second)
	w.answerAll()
	if m := second(); m.Phase != fleet.Finished {
		t.Errorf("what had switched did not arrive: %+v", m)
	}
}

// Owners with their own policies, and requested drains.
func TestOwnerAgreedToOtherwise(t *testing.T) {
	w := spread(t, 1, "host1")
	for _, vacate := range []fleet.Vacate{fleet.Stay, fleet.Suspend} {
		w.must(fleet.Request{Verb: fleet.SetPolicy, Host: "host1", Policy: &fleet.OwnerPolicy{Owned: true, Vacate: vacate}})
		w.owner("host1", fleet.OwnerPresent)
		w.tick(time.Minute)
		if len(w.s.Moves) != 0 || w.s.Hosts["host1"].State != fleet.HostUp {
			t.Fatalf("%s: %+v", vacate, w.s.Moves)
		}
	}
	w.must(fleet.Request{Verb: fleet.Claim, Host: "host1"})
	if h := w.s.Hosts["host1"]; !h.Policy.Claimed || h.Policy.Vacate != fleet.Suspend {
		t.Errorf("claimed: %+v", h.Policy)
	}
	w.must(fleet.Request{Verb: fleet.Release, Host: "host1"})
	w.must(fleet.Request{Verb: fleet.SetPolicy, Host: "host1", Policy: &fleet.OwnerPolicy{Owned: true}})
	w.tick(time.Second)
	if len(w.s.Moves) != 1 || !w.s.Hosts["host1"].ForOwner {
		t.Fatalf("agreed to leave: %+v", w.s.Moves)
	}
	// A requested drain outlives the owner's stay.
	w.must(fleet.Request{Verb: fleet.Drain, Host: "host1"})
	w.owner("host1", fleet.OwnerAbsent)
	w.answerAll()
	w.tick(time.Minute)
	if h := w.s.Hosts["host1"]; h.State != fleet.HostDraining || h.ForOwner || len(w.guests["host1"]) != 0 {
		t.Errorf("%+v %v", h, w.guests)
	}
	var no *Refusal
	for _, r := range []fleet.Request{
		{Verb: fleet.SetPolicy, Host: "host1"}, {Verb: fleet.Claim, Host: "none"},
		{Verb: fleet.SetPolicy, Host: "host1", Policy: &fleet.OwnerPolicy{Cap: 2}},
	} {
		if _, err := w.ask(r); !errors.As(err, &no) {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if _, err := w.p.Step(w.s, fleet.Request{Verb: fleet.Claim, Host: "host1", By: fleet.Caller{UID: 5}}); !errors.As(err, &no) {
		t.Errorf("anybody may claim a host: %v", err)
	}
}

// All owners come back at once: guests have nowhere to go, none is lost, and the first
// host that is free again gets them.
func TestAllOwnersAtOnce(t *testing.T) {
	w := spread(t, 2, "host1")
	for id := range w.s.Hosts {
		w.owner(id, fleet.OwnerPresent)
	}
	w.tick(time.Minute)
	w.answerAll()
	if len(w.s.Moves) != 0 || len(w.guests["host1"]) != 2 {
		t.Fatalf("%+v", w.s.Moves)
	}
	w.owner("host2", fleet.OwnerAbsent)
	w.tick(2 * time.Second)
	w.answerAll()
	if len(w.guests["host2"]) != 2 || len(w.guests["host1"]) != 0 {
		t.Errorf("%v", w.guests)
	}
}

// stays simulates an owner who stays under the cluster's rules.
func (w *world) stays(id fleet.HostID, r fleet.Rules) {
	w.t.Helper()
	w.must(fleet.Request{Verb: fleet.SetRules, Rules: &r, By: fleet.Caller{Admin: true}})
	w.owner(id, fleet.OwnerPresent)
	w.tick(time.Second)
}

// anywhere is a job that began on host1 and may restart on any host.
func anywhere(t checker) *world {
	w := spread(t, 2, "host1")
	j := w.s.Jobs["j1"]
	j.Spec.On = nil
	w.s.Jobs["j1"] = j
	return w
}

// Under each cluster policy, guests of a present owner behave as the policy says, unless
// the host's owner chose another. It ends when the owner goes.
func TestPolicyOfTheCluster(t *testing.T) {
	for _, p := range fleet.VacatePolicies {
		for _, own := range []fleet.Vacate{"", fleet.Stay} {
			w := anywhere(t)
			w.must(fleet.Request{Verb: fleet.SetPolicy, Host: "host1", Policy: &fleet.OwnerPolicy{Owned: true, Vacate: own}})
			w.stays("host1", fleet.Rules{Vacate: p.Name})
			w.answerAll()
			w.tick(time.Second)
			w.answerAll()
			want := p.Name
			if own != "" {
				want = own
			}
			leaves := want == fleet.Evacuate || want == fleet.Predictive
			if got := len(w.s.Moves) > 0; got != leaves {
				t.Errorf("%s: guests left: %v", want, got)
			}
			for _, id := range []fleet.GuestID{"j1g0", "j1g1"} {
				if got := w.s.Guests[id].Suspended; got != (want == fleet.Suspend) {
					t.Errorf("%s: %s is suspended: %v", want, id, got)
				}
			}
			again := w.s.Jobs["j1"].Incarnation
			if (again == 1) != (want == fleet.Requeue) {
				t.Errorf("%s: it is incarnation %d: %+v", want, again, w.s.Jobs["j1"])
			}
			if again > 0 && (w.s.Jobs["j1"].State != fleet.JobRunning || w.s.Guests["j1g0"].Home == "host1" || w.s.Guests["j1g1"].Home == "host1") {
				t.Errorf("it began again where the owner is: %+v", w.s.Guests)
			}
			w.owner("host1", fleet.OwnerAbsent)
			w.tick(time.Second)
			w.answerAll()
			if h := w.s.Hosts["host1"]; h.State != fleet.HostUp || h.ForOwner || w.s.Guests["j1g0"].Suspended {
				t.Errorf("%s: the owner has gone: %+v %+v", want, h, w.s.Guests["j1g0"])
			}
		}
	}
}

// Guests that cannot leave are suspended until there is room. While it is unknown whether
// the owner goes, nothing changes.
func TestWhoCannotLeaveIsSuspended(t *testing.T) {
	w := spread(t, 2, "host1")
	for _, id := range []fleet.HostID{"host1", "host2", "host3", "host4"} {
		w.owner(id, fleet.OwnerPresent)
	}
	for _, s := range []fleet.OwnerState{fleet.OwnerPresent, fleet.OwnerLeaving, fleet.OwnerPresent} {
		w.owner("host1", s)
		w.tick(time.Second)
		if !w.s.Guests["j1g0"].Suspended || !w.s.Guests["j1g1"].Suspended || len(w.s.Moves) > 0 {
			t.Fatalf("nowhere to go, the owner is %s: %+v %v", s, w.s.Guests, w.s.Moves)
		}
	}
	w.owner("host2", fleet.OwnerAbsent)
	w.tick(2 * time.Second) // the first tick lets it take guests again, the second informs them
	w.answerAll()
	if g := w.s.Guests["j1g0"]; g.Suspended || g.Home != "host2" {
		why, _ := w.p.Explain(w.s, Subject{Host: "host1"})
		t.Errorf("there is room now: %+v: %q", g, why)
	}
}

// Guests that cannot leave run on if the host's owner agreed to that, and leave as soon
// as there is room.
func TestWhoCannotLeaveRunsOn(t *testing.T) {
	w := spread(t, 2, "host1")
	w.must(fleet.Request{Verb: fleet.SetPolicy, Host: "host1", Policy: &fleet.OwnerPolicy{Owned: true, Nowhere: fleet.Stay}})
	for id := range w.s.Hosts {
		w.owner(id, fleet.OwnerPresent)
	}
	w.tick(10 * time.Second)
	if w.s.Guests["j1g0"].Suspended || w.s.Guests["j1g1"].Suspended || len(w.s.Moves) > 0 {
		t.Fatalf("nowhere to go: %+v %v", w.s.Guests, w.s.Moves)
	}
	w.owner("host2", fleet.OwnerAbsent)
	w.tick(2 * time.Second)
	w.answerAll()
	if g := w.s.Guests["j1g0"]; g.Home != "host2" {
		t.Errorf("there is room now: %+v", g)
	}
}

// The guests of one job leave for a present owner; those of another are suspended,
// because leaving would cost it more than waiting. A requested drain moves all of them.
func TestEachJobAsItWasJudged(t *testing.T) {
	dear := func() *world {
		w := spread(t, 1, "host1")
		r := submission(1)
		r.Spec.On = []fleet.HostID{"host1"}
		w.must(r)
		w.answerAll()
		h := w.s.Hosts["host1"]
		h.Facts.Guests["j1g0"] = fleet.GuestFacts{Run: fleet.Running, Profile: &fleet.Profile{MemoryBytes: 1 << 40, FilledBytes: 1 << 40}}
		w.owner("host1", fleet.OwnerPresent)
		return w
	}
	w := dear()
	w.tick(2 * time.Second)
	for _, said := range []Subject{{Host: "host1"}, {Guest: "j1g0"}} {
		why, err := w.p.Explain(w.s, said)
		if all := strings.Join(why, " "); err != nil || !strings.Contains(all, "be suspended: leaving is expected to cost") && !strings.Contains(all, "so it is to leave when the policy says so") ||
			said.Host != "" && !strings.Contains(all, "j1g0 leaves for host3 when the policy says so, and is suspended until then") {
			t.Errorf("%q, %v", why, err)
		}
	}
	w.answerAll()
	w.tick(10 * time.Second)
	w.answerAll()
	if h := w.s.Hosts["host1"]; !h.ForOwner || len(w.s.Moves) != 1 || w.s.Guests["j2g0"].Home == "host1" || !w.s.Guests["j1g0"].Suspended || w.s.Guests["j1g0"].Home != "host1" {
		t.Errorf("%+v %+v %+v", h, w.s.Moves, w.s.Guests)
	}
	h := w.s.Hosts["host1"]
	h.Facts.Guests["j1g0"] = fleet.GuestFacts{Run: fleet.Running}
	w.tick(time.Second)
	w.answerAll()
	if g := w.s.Guests["j1g0"]; g.Suspended || g.Home == "host1" {
		t.Errorf("leaving costs little now: %+v", g)
	}
	w = dear()
	w.must(fleet.Request{Verb: fleet.Drain, Host: "host1"})
	for range 3 {
		w.tick(time.Second)
		w.answerAll()
	}
	if h := w.s.Hosts["host1"]; h.ForOwner || len(w.guests["host1"]) != 0 {
		t.Errorf("drained by hand: %+v %v", h, w.guests)
	}
}

// A requeued job waits for room without limit.
func TestRequeueWaitsForRoom(t *testing.T) {
	w := anywhere(t)
	all := []fleet.HostID{"host1", "host2", "host3", "host4"}
	for _, id := range all {
		w.owner(id, fleet.OwnerPresent)
	}
	w.stays("host1", fleet.Rules{Vacate: fleet.Requeue})
	w.answerAll()
	for range 3 {
		w.tick(time.Hour)
	}
	if j := w.s.Jobs["j1"]; j.State != fleet.JobPending || j.Incarnation != 1 || j.Result != "" {
		t.Fatalf("it is forgotten, or runs where owners are: %+v", w.s.Jobs)
	}
	for _, id := range all {
		w.owner(id, fleet.OwnerAbsent)
	}
	w.tick(time.Second)
	if j := w.s.Jobs["j1"]; len(w.s.Jobs) != 1 || j.State != fleet.JobStarting {
		t.Errorf("there is room: %+v", w.s.Jobs)
	}
}

// Only administrators may set rules, and only valid ones.
func TestRulesRefused(t *testing.T) {
	w := spread(t, 1, "host1")
	var no *Refusal
	for _, r := range []fleet.Request{
		{Rules: &fleet.Rules{Vacate: "flee"}, By: fleet.Caller{Admin: true}}, {Rules: &fleet.Rules{Placement: "anywhere"}, By: fleet.Caller{Admin: true}},
		{By: fleet.Caller{Admin: true}}, {Rules: &fleet.Rules{Vacate: fleet.Stay}, By: fleet.Caller{UID: 5}},
	} {
		r.Verb = fleet.SetRules
		if _, err := w.p.Step(w.s, r); !errors.As(err, &no) {
			t.Errorf("%+v: %v", r.Rules, err)
		}
	}
}

// A guest whose slow host delays its whole job moves to a better one; the job's guests
// then stay for some minutes.
func TestHeldBack(t *testing.T) {
	w := spread(t, 3, "host1", "host2")
	short := func(id fleet.HostID, cpus int) {
		h := w.s.Hosts[id]
		h.Facts.Capacity.CPUs = cpus
		for g := range w.guests[id] {
			h.Facts.Guests[g] = fleet.GuestFacts{Run: fleet.Running, CPUs: 0.5}
		}
		w.s.Hosts[id] = h
	}
	short("host2", 4)
	w.tick(10 * time.Minute)
	if len(w.s.Moves) != 0 {
		t.Fatalf("no guest is held back: %+v", w.s.Moves)
	}
	short("host1", 1)
	w.tick(time.Minute)
	v := w.s.Moves["m1"]
	if len(v.Migrations) != 1 || !strings.HasPrefix(v.Why, "job j1 is held back by host1: 50 % of its pace, and 100 % elsewhere") {
		t.Fatalf("%+v", w.s.Moves)
	}
	w.answerAll()
	if len(w.guests["host1"]) != 1 {
		t.Fatalf("%v", w.guests)
	}
	for id := range w.guests {
		short(id, 4)
	}
	h := w.s.Hosts["host2"]
	h.Facts.Owner = &fleet.Owner{LoadCPUs: 3.8} // no owner, but other users
	w.s.Hosts["host2"] = h
	w.tick(4 * time.Minute)
	if len(w.s.Moves) != 1 {
		t.Fatalf("it is not left alone: %+v", w.s.Moves)
	}
	w.tick(2 * time.Minute)
	if len(w.s.Moves) != 2 {
		t.Fatalf("it is left alone for too long: %+v", w.s.Moves)
	}
}
