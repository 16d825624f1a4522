package lifecycle

import (
	"testing"
	"time"

	"pagurus/fleet"
)

// State of a guest on its host, which the controller cannot see.
const (
	runs      = iota // nothing of a checkpoint, or nothing that counts any more
	armed            // it runs
	isCut            // suspended, as at the cut
	continued        // it runs, and its state as at the cut is written
	dead             // its host is gone
)

// part is one guest of a checkpoint on its host, and its vault.
type part struct {
	at       int
	refuses  bool // it was dropped: no other order about the checkpoint is taken any more
	vault    bool // has its state
	shut     bool // the vault was told to drop it, and takes nothing of it any more
	answered bool
	attempt  int
	gaveUp   bool // its host was asked to drop it in vain
	late     [4]bool
}

// checkpointVerbs are the orders whose answer may be lost and that are carried out later.
var checkpointVerbs = [4]fleet.Verb{fleet.Arm, fleet.Cut, fleet.Continue, fleet.Save}

// cutOf is everything that determines what can happen next.
type cutOf struct {
	phase          fleet.CheckpointPhase
	saved, wasKept bool
	parts          [2]part
	early          bool // a guest ran on by Continue before all had been suspended
}

func (n cutOf) checkpoint() fleet.Checkpoint {
	c := fleet.Checkpoint{ID: "j1c1", Job: "j1", Phase: n.phase, WasKept: n.wasKept}
	if n.saved {
		c.Saved = t0
	}
	for i, p := range n.parts {
		c.Guests = append(c.Guests, fleet.CheckpointPart{
			Guest: names[i], Gen: 1, Host: fleet.HostID("h" + string(names[i])), Vault: fleet.HostID("v" + string(names[i])), Answered: p.answered, Attempt: p.attempt,
		})
	}
	return c
}

func (n cutOf) after(c fleet.Checkpoint) cutOf {
	n.phase, n.saved, n.wasKept = c.Phase, !c.Saved.IsZero(), c.WasKept
	for i, p := range c.Guests {
		n.parts[i].answered, n.parts[i].attempt = p.Answered, p.Attempt
		if n.phase == fleet.Dropping {
			n.parts[i].attempt = min(p.Attempt, 1) // all further tries are equivalent
		}
	}
	return n
}

// carryPart carries out an order about guest i. The second result is false if the host can only answer failed.
func (n cutOf) carryPart(i int, v fleet.Verb, atVault bool) (cutOf, bool) {
	p := &n.parts[i]
	switch {
	case v == fleet.Drop && atVault:
		p.vault, p.shut = false, true
		return n, true
	case p.at == dead:
		return n, false
	case v == fleet.Drop:
		p.at, p.refuses = runs, true
		return n, true
	case p.refuses:
		return n, false
	case v == fleet.Arm && p.at == runs, v == fleet.Arm && p.at == armed:
		p.at = armed
	case v == fleet.Cut && (p.at == armed || p.at == isCut):
		p.at = isCut
	case v == fleet.Continue && p.at == isCut:
		p.at = continued
		other := n.parts[1-i].at
		n.early = n.early || other == runs && !n.parts[1-i].refuses || other == armed
	case v == fleet.Continue && p.at == continued:
	case v == fleet.Save && p.at == continued && !p.shut:
		p.vault = true
	default:
		return n, false
	}
	return n, true
}

func lateness(v fleet.Verb) int {
	for i, x := range checkpointVerbs {
		if x == v {
			return i
		}
	}
	return -1
}

// nextCuts returns every state that can follow: orders carried out, twice, without an answer, late, refused; guests that run on
// by themselves; hosts that are gone; and removal at any moment.
func (n cutOf) nextCuts(t *testing.T, hostsDie bool) (out []cutOf) {
	t.Helper()
	c := n.checkpoint()
	answer := func(world cutOf, i int, o fleet.Order, how fleet.Outcome) {
		r := fleet.Report{At: t0, Order: o, Outcome: how}
		if o.Verb == fleet.Save && how == fleet.Done {
			r.Kept = &fleet.KeptState{Manifest: "sha256-1"}
		}
		next, changed, err := Checkpoint(c, r)
		if err != nil || !changed {
			t.Fatalf("%+v, %+v: %t, %v", c, r, changed, err)
		}
		world.parts[i].gaveUp = world.parts[i].gaveUp || n.phase == fleet.Releasing && how != fleet.Done && c.Guests[i].Attempt >= moreTries
		out = append(out, world.after(next))
	}
	for i := range n.parts {
		for k, waits := range n.parts[i].late {
			if !waits {
				continue
			}
			if did, can := n.carryPart(i, checkpointVerbs[k], false); can {
				did.parts[i].late[k] = false
				out = append(out, did)
			}
		}
		if n.parts[i].at == isCut { // CutHold is over
			own := n
			own.parts[i].at, own.parts[i].refuses = runs, true
			out = append(out, own)
		}
		if hostsDie && n.parts[i].at != dead && n.phase != fleet.Due {
			own := n
			own.parts[i].at, own.parts[i].late = dead, [4]bool{}
			next, _ := CheckpointWithout(c, c.Guests[i].Host, false, t0)
			out = append(out, own.after(next))
		}
		o, waits := CheckpointOrder(c, i)
		if !waits {
			continue
		}
		if did, can := n.carryPart(i, o.Verb, c.Phase.Traits().AtVault); can {
			answer(did, i, o, fleet.Done)
			answer(did, i, o, fleet.Unknown)
		} else {
			answer(n, i, o, fleet.Failed)
		}
		if o.Verb != fleet.Drop {
			void := n
			if void.parts[i].at != dead {
				void.parts[i].at, void.parts[i].refuses = runs, true
			}
			answer(void, i, o, fleet.Failed)
			not := n
			not.parts[i].late[lateness(o.Verb)] = true
			answer(not, i, o, fleet.Unknown)
		}
	}
	if gone, changed := RemoveCheckpoint(c, "removed", t0); changed && len(c.Guests) > 0 {
		out = append(out, n.after(gone))
	}
	return out
}

// A checkpoint of two guests in every way: no guest runs on by Continue before both are suspended; whatever happens, both run in the
// end; what is kept is whole; and of what is not, nothing is left.
func TestCheckpointInEveryWay(t *testing.T) {
	for _, hostsDie := range []bool{false, true} {
		seen, phases := map[cutOf]bool{}, map[fleet.CheckpointPhase]int{}
		todo := []cutOf{{phase: fleet.Arming}}
		for len(todo) > 0 {
			n := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			if seen[n] {
				continue
			}
			seen[n] = true
			phases[n.phase]++
			n.soundCut(t)
			todo = append(todo, n.nextCuts(t, hostsDie)...)
		}
		for _, row := range fleet.CheckpointPhases {
			if row.Phase != fleet.Due && row.Phase != fleet.Taking && phases[row.Phase] == 0 {
				t.Errorf("%s was never entered", row.Phase)
			}
		}
		t.Logf("hosts die: %t: %d states", hostsDie, len(seen))
	}
}

func (n cutOf) soundCut(t *testing.T) {
	t.Helper()
	bad := ""
	switch {
	case n.early && (n.phase == fleet.Kept || n.phase == fleet.Saving):
		bad = "a guest ran on before all were suspended, and the cut counts"
	case n.early:
		bad = "a guest was let run on before all were suspended"
	}
	for _, p := range n.parts {
		switch {
		case n.phase == fleet.Kept && !p.vault:
			bad = "kept without a part"
		case n.phase.Ended() && p.vault:
			bad = "a vault has something of what there is not"
		case (n.phase == fleet.Kept || n.phase == fleet.Dropping || n.phase.Ended()) && p.at == isCut && !p.gaveUp && !n.unheard(p):
			bad = "a guest is suspended after the end"
		}
	}
	if bad != "" {
		t.Fatalf("%s: %+v", bad, n)
	}
}

// unheard reports whether a late order may have suspended the guest; it runs on by itself then.
func (n cutOf) unheard(p part) bool { return !p.refuses && p.late != [4]bool{} }

// From every phase, hosts that answer bring a checkpoint to an end.
func TestEveryCheckpointCanEnd(t *testing.T) {
	for _, row := range fleet.CheckpointPhases {
		for _, saved := range []bool{false, true} {
			c := cutOf{phase: row.Phase, saved: saved}.checkpoint()
			for range 20 {
				for i := range c.Guests {
					c, _ = TakePart(c, c.Guests[i].Guest, t0)
					if o, waits := CheckpointOrder(c, i); waits {
						c, _, _ = Checkpoint(c, fleet.Report{At: t0, Order: o, Outcome: fleet.Done, Kept: &fleet.KeptState{Manifest: "sha256-1"}})
					}
				}
			}
			if c.Phase.Open() && c.Phase != fleet.Due {
				t.Errorf("from %s: stays in %s", row.Phase, c.Phase)
			}
		}
	}
}

// The rows in fleet agree with the table: an order exactly where answers lead on, and every outcome of each.
func TestCheckpointTraitsAgreeWithTheTable(t *testing.T) {
	for _, row := range fleet.CheckpointPhases {
		for _, o := range []fleet.Outcome{fleet.Done, fleet.Failed, fleet.Unknown} {
			n := 0
			for _, a := range checkpointArrows {
				if a.from == row.Phase && a.on == o {
					n++
				}
			}
			if want := map[bool]int{true: 1}[row.Verb != ""]; n != want {
				t.Errorf("%s on %s: %d lines, want %d", row.Phase, o, n, want)
			}
		}
		if (row.Verb == "") != (row.Label != "") || row.Holds && row.Verb == "" {
			t.Errorf("%s has neither an order nor a label, or both", row.Phase)
		}
	}
}

// A part that is said to be saved and has no name is not kept.
func TestSavedWithoutAManifest(t *testing.T) {
	c := cutOf{phase: fleet.Saving, saved: true}.checkpoint()
	o, _ := CheckpointOrder(c, 0)
	if c, _, _ = Checkpoint(c, fleet.Report{Order: o, Outcome: fleet.Done}); c.Phase != fleet.Releasing || c.Cause == "" {
		t.Errorf("%s, %q", c.Phase, c.Cause)
	}
}

// A host that is forgotten takes the parts in its vault along; one that is only gone does not.
func TestVaultThatIsGone(t *testing.T) {
	c := cutOf{phase: fleet.Kept, saved: true, wasKept: true}.checkpoint()
	if _, changed := CheckpointWithout(c, "vg0", false, t0); changed {
		t.Error("a vault that may come back took a checkpoint along")
	}
	c, _ = CheckpointWithout(c, "vg0", true, t0)
	if c.Phase != fleet.Dropping || !c.Guests[0].Answered || c.Guests[1].Answered {
		t.Fatalf("%+v", c)
	}
	if c, _ = CheckpointWithout(c, "vg1", true, t0); c.Phase != fleet.Removed {
		t.Errorf("%+v", c)
	}
}

// Newer checkpoints replace older ones, but none that a person asked for.
func TestRetained(t *testing.T) {
	var all []fleet.Checkpoint
	for i := range 5 {
		all = append(all, fleet.Checkpoint{ID: fleet.CheckpointName("j1", i+1), Phase: fleet.Kept, Begun: t0.Add(time.Duration(i) * time.Hour), Pinned: i == 0})
	}
	all[4].Phase = fleet.Saving
	if old := Retained(all, 2); len(old) != 1 || old[0].ID != "j1c2" {
		t.Errorf("%+v", old)
	}
	if old := Retained(all, 9); len(old) != 0 {
		t.Errorf("%+v", old)
	}
}

// A job whose guests are made from a checkpoint runs when all have been made and let run, and not before.
func TestRestoredGuestsRunTogether(t *testing.T) {
	j := fleet.Job{ID: "j1", State: fleet.JobStarting, From: "j1c1", Spec: fleet.JobSpec{Guests: 2, Checkpoint: &fleet.CheckpointPlan{Every: time.Hour}}}
	var gs []fleet.Guest
	for i := range 2 {
		gs = append(gs, GuestOf(fleet.Guest{ID: names[i], Job: "j1", Home: "host1", Gen: 2}, "j1c1", "host2"))
	}
	done := func(i int) {
		t.Helper()
		o, waits := GuestOrder(gs[i])
		next, changed, err := Guest(gs[i], fleet.Report{Order: o, Outcome: fleet.Done})
		if !waits || !changed || err != nil {
			t.Fatalf("%+v: %t, %v", gs[i], changed, err)
		}
		gs[i] = next
	}
	if o, _ := GuestOrder(gs[0]); o.Verb != fleet.Restore || o.Checkpoint != "j1c1" || o.Peer != "host2" {
		t.Fatalf("%+v", o)
	}
	done(0)
	if _, moved, _ := SettleJob(j, gs, t0); len(moved) > 0 || gs[0].State != fleet.GuestRestored {
		t.Fatalf("%+v", moved)
	}
	done(1)
	_, gs, _ = SettleJob(j, gs, t0)
	for i := range gs {
		if o, _ := GuestOrder(gs[i]); o.Verb != fleet.Activate || o.Checkpoint != "" {
			t.Fatalf("%+v", o)
		}
		done(i)
	}
	j, _, _ = SettleJob(j, gs, t0)
	if j.State != fleet.JobRunning || !j.NextCheckpoint.Equal(t0.Add(time.Hour)) {
		t.Errorf("%+v", j)
	}
}

// A job that begins again goes on from what was asked for, else from the newest checkpoint; one that is suspended waits for a person.
func TestWhereAJobBeginsAgain(t *testing.T) {
	running := fleet.Job{ID: "j1", State: fleet.JobRunning, Newest: "j1c2", Spec: fleet.JobSpec{Guests: 1}}
	gone := []fleet.Guest{{ID: "j1g0", Job: "j1", State: fleet.GuestEnded}}
	for name, c := range map[string]struct {
		stop func(fleet.Job) (fleet.Job, bool)
		from fleet.CheckpointID
		is   fleet.JobState
	}{
		"requeued":       {func(j fleet.Job) (fleet.Job, bool) { return Requeue(j, "its owner is there", t0) }, "j1c2", fleet.JobPending},
		"restarted":      {func(j fleet.Job) (fleet.Job, bool) { return Restart(j, "", false, t0) }, "j1c2", fleet.JobPending},
		"from an older":  {func(j fleet.Job) (fleet.Job, bool) { return Restart(j, "j1c1", false, t0) }, "j1c1", fleet.JobPending},
		"from beginning": {func(j fleet.Job) (fleet.Job, bool) { return Restart(j, "", true, t0) }, "", fleet.JobPending},
		"suspended":      {func(j fleet.Job) (fleet.Job, bool) { return SuspendJob(j, "j1c3", t0) }, "j1c3", fleet.JobSuspended},
	} {
		j, changed := c.stop(running)
		j, _, _ = SettleJob(j, gone, t0)
		if !changed || j.State != c.is || j.From != c.from || j.Incarnation != 1 || j.Suspending {
			t.Errorf("%s: %s from %q, incarnation %d", name, j.State, j.From, j.Incarnation)
		}
		if c.is != fleet.JobSuspended {
			continue
		}
		if over, was := Cancel(j, t0, 0, "cancelled"); !was || over.State != fleet.JobEnded {
			t.Errorf("cancelled: %+v", over)
		}
		if j, was := ResumeJob(j, t0); !was || j.State != fleet.JobPending || j.From != c.from {
			t.Errorf("resumed: %+v", j)
		}
	}
}

// A checkpoint that no guest can be made from is not tried for ever: the job takes an older one.
func TestUnrestorable(t *testing.T) {
	j := fleet.Job{ID: "j1", State: fleet.JobStarting, From: "j1c2", Newest: "j1c2", Spec: fleet.JobSpec{Guests: 1}}
	g := GuestOf(fleet.Guest{ID: "j1g0", Job: "j1", Home: "host1"}, "j1c2", "host2")
	o, _ := GuestOrder(g)
	g, _, _ = Guest(g, fleet.Report{Order: o, Outcome: fleet.Failed, Cause: "a chunk is damaged"})
	j, _, _ = SettleJob(j, []fleet.Guest{g}, t0)
	if j.State != fleet.JobPending || len(j.Unrestorable) != 1 || j.Elsewhere != 1 {
		t.Errorf("%+v", j)
	}
}

// A guest that is killed as it is made from a checkpoint has a second try from there, elsewhere; then an older one may do.
func TestKilledAsItIsRestored(t *testing.T) {
	j := fleet.Job{ID: "j1", State: fleet.JobStarting, From: "j1c2", Newest: "j1c2", Spec: fleet.JobSpec{Guests: 1}}
	for n, verb := range []fleet.Verb{fleet.Restore, fleet.Activate} {
		g := GuestOf(fleet.Guest{ID: "j1g0", Job: "j1", Home: "host1"}, "j1c2", "host2")
		if verb == fleet.Activate {
			g.State = fleet.GuestResuming
		}
		o, _ := GuestOrder(g)
		g, _, _ = Guest(g, fleet.Report{Order: o, Outcome: fleet.Failed, AtFault: true, Cause: "it was killed", Remains: &fleet.Remains{Killed: true}})
		j, _, _ = SettleJob(j, []fleet.Guest{g}, t0)
		if o.Verb != verb || j.State != fleet.JobPending || len(j.Unrestorable) != n || j.Elsewhere != n+1 || len(j.Avoid) != 1 || j.Restarted != 0 {
			t.Errorf("%d: %+v", n, j)
		}
		j.State, j.From = fleet.JobStarting, "j1c2"
	}
}

// A copy that comes back is kept when the last part has come, and dropped when it is given up, or when no part comes any more.
func TestCopyIsTakenBack(t *testing.T) {
	was := cutOf{phase: fleet.Kept, saved: true, wasKept: true}.checkpoint()
	was.Guests[0].Manifest, was.Guests[1].Manifest, was.Pinned, was.Incarnation = "sha256-0", "sha256-1", true, 2
	of := fleet.CheckpointCopy{Checkpoint: was, Output: fleet.Written{Sizes: map[string]int64{fleet.Stdout: 7}}}
	j, c := TakeCheckpoint(fleet.Job{ID: "j1", Checkpoints: 4}, of, []fleet.HostID{"v8", "v9"}, t0)
	if j.Checkpoints != 5 || c.ID != "j1c5" || c.Phase != fleet.Taking || c.WasKept || c.Pinned || c.Guests[1].Vault != "v9" || c.Guests[1].Manifest != "sha256-1" || c.Written.Sizes[fleet.Stdout] != 7 {
		t.Fatalf("%+v of %+v", c, j)
	}
	if was.Guests[0].Vault == c.Guests[0].Vault {
		t.Error("what it is a copy of has changed")
	}
	next, changed := TakePart(c, names[0], t0)
	if !changed || next.Phase != fleet.Taking || c.Guests[0].Answered {
		t.Errorf("%t, %+v", changed, next)
	}
	if _, again := TakePart(next, names[0], t0); again {
		t.Error("it came twice")
	}
	if _, changed := TakePart(next, "j9g9", t0); changed {
		t.Error("another one came")
	}
	if _, late := Overdue(next, t0.Add(takeLimit-1)); late {
		t.Error("given up too early")
	}
	late, changed := Overdue(next, t0.Add(takeLimit))
	if !changed || late.Phase != fleet.Dropping {
		t.Errorf("%+v", late)
	}
	if lost, changed := CheckpointWithout(next, "v8", true, t0); !changed || lost.Phase != fleet.Dropping || !lost.Guests[0].Answered || lost.Guests[1].Answered {
		t.Errorf("without a vault: %+v", lost)
	}
	if whole, changed := TakePart(next, names[1], t0); !changed || whole.Phase != fleet.Kept || !whole.WasKept || whole.Guests[0].Answered {
		t.Errorf("%+v", whole)
	}
}
