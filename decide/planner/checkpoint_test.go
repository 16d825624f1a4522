package planner

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/decide/desired"
	"pagurus/decide/lifecycle"
	"pagurus/decide/state"
	"pagurus/fleet"
)

// points is what hosts and vaults have of checkpoints.
type points struct {
	guests  map[fleet.GuestID]string // armed, cut or continued
	vaults  map[string]fleet.HostID  // which vault has a part
	dropped map[string]bool          // parts about which a home takes nothing any more
	failing fleet.Verb               // hosts answer failed to this

	done map[fleet.Order]fleet.Report // what is answered again as it was
}

func partName(o fleet.Order) string { return string(o.Checkpoint) + "/" + string(o.Guest) }

// carryCheckpoint carries out an order about a checkpoint, or one to make a guest from it.
func (w *world) carryCheckpoint(o fleet.Order) (fleet.Report, bool) {
	r, name, at := fleet.Report{Order: o, Outcome: fleet.Done}, partName(o), w.points.guests[o.Guest]
	fail := func(cause string) (fleet.Report, bool) {
		r.Outcome, r.Cause = fleet.Failed, cause
		return r, true
	}
	here := w.guests[o.Host][o.Guest]
	grants := desired.New(w.s).Wanted(o.Peer).VaultGrants
	granted := func(write bool) bool {
		return o.Peer == o.Host || slices.ContainsFunc(grants, func(g fleet.VaultGrant) bool {
			return g.Checkpoint == o.Checkpoint && g.Guest == o.Guest && g.Host == o.Host && g.Write == write
		})
	}
	if before, was := w.points.done[o]; was && !w.points.dropped[name] && at != "void" {
		return before, true
	}
	defer func() {
		if r.Outcome == fleet.Done && o.Verb != fleet.Drop && o.Verb != fleet.Restore {
			w.points.done[o] = r
		}
	}()
	switch {
	case o.Verb == w.points.failing:
		return fail("it was made to fail")
	case o.Verb == fleet.Drop && o.Gen == 0:
		delete(w.points.vaults, name)
	case o.Verb == fleet.Drop:
		w.points.dropped[name] = true
		delete(w.points.guests, o.Guest)
		if here == fleet.Suspended {
			w.guests[o.Host][o.Guest] = fleet.Running
		}
	case o.Verb == fleet.Restore:
		if d := Task(w.s, o).Deposit; w.points.vaults[name] != o.Peer || d.Manifest == "" || !granted(false) {
			return fail("the vault does not give it")
		}
		w.saw[o.Host][o.Guest] = o.Gen
		w.guests[o.Host][o.Guest], w.whole[o.Host][o.Guest] = fleet.Suspended, true
	case w.points.dropped[name] || here == "":
		return fail("it was dropped, or is not here")
	case o.Verb == fleet.Arm && here == fleet.Running:
		w.points.guests[o.Guest] = "armed"
	case o.Verb == fleet.Cut && at == "armed":
		w.points.guests[o.Guest], w.guests[o.Host][o.Guest] = "cut", fleet.Suspended
	case o.Verb == fleet.Continue && at == "cut":
		for _, g := range w.s.Checkpoints[o.Checkpoint].Guests {
			if w.points.guests[g.Guest] == "armed" {
				w.t.Fatalf("%s continues and %s is not cut", o.Guest, g.Guest)
			}
		}
		w.points.guests[o.Guest], w.guests[o.Host][o.Guest] = "continued", fleet.Running
	case o.Verb == fleet.Save && at == "continued":
		if !granted(true) {
			return fail("the vault takes nothing")
		}
		w.points.vaults[name] = o.Peer
		delete(w.points.guests, o.Guest)
		r.Kept = &fleet.KeptState{Manifest: "sha256-" + fleet.Digest(name), Bytes: 100 << 20, NewBytes: 10 << 20, Stop: 20 * time.Millisecond}
	default:
		return fail("the order does not fit: " + at)
	}
	return r, true
}

// standsCut reports whether an order that stands is about a guest that is suspended at a cut: it goes on standing.
func (w *world) standsCut(o fleet.Order) bool {
	return w.points.guests[o.Guest] == "cut" && (o.Verb == fleet.Watch || o.Verb == fleet.Run || o.Verb == fleet.End)
}

// running submits a job and lets it run.
func (w *world) running(guests int, change func(*fleet.JobSpec)) fleet.JobID {
	w.t.Helper()
	r := submission(guests)
	if change != nil {
		change(r.Spec)
	}
	j := w.must(r).Job
	w.answerAll()
	if w.s.Jobs[j].State != fleet.JobRunning {
		w.t.Fatalf("%+v", w.s.Jobs[j])
	}
	return j
}

func (w *world) phase(id fleet.CheckpointID, want fleet.CheckpointPhase) fleet.Checkpoint {
	w.t.Helper()
	c := w.s.Checkpoints[id]
	if c.Phase != want {
		w.t.Fatalf("%s is %s, not %s: %s", id, c.Phase, want, c.Cause)
	}
	return c
}

// loseHost cuts a host off until its lease is over and all that follows is done.
func (w *world) loseHost(id fleet.HostID) {
	w.t.Helper()
	w.cut(id)
	w.tick(3 * aLease)
	w.answerAll()
}

// A checkpoint is kept in vaults of hosts that do not run the guests, and a job that loses a host goes on from it: elsewhere, with
// the same addresses, on another network.
func TestJobGoesOnFromItsCheckpoint(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3", "host4")
	j := w.running(2, func(s *fleet.JobSpec) { s.Restarts, s.On = 1, []fleet.HostID{"host1", "host2", "host3"} })
	id := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j, ID: "r1"}).Checkpoint
	if again := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j, ID: "r1"}); again.Checkpoint != id {
		t.Errorf("a repeated request made %s", again.Checkpoint)
	}
	w.answerAll()
	c := w.phase(id, fleet.Kept)
	all, fresh := c.Bytes()
	if all != 200<<20 || fresh != 20<<20 || c.Stop() != 20*time.Millisecond || w.s.Jobs[j].Newest != id {
		t.Errorf("%+v", c)
	}
	homes := map[fleet.HostID]bool{}
	for _, p := range c.Guests {
		homes[p.Host] = true
	}
	for _, p := range c.Guests {
		if homes[p.Vault] {
			t.Errorf("%s is kept on %s, where the job runs", p.Guest, p.Vault)
		}
	}
	before, lost := w.s.Jobs[j], w.s.Guests[desired.GuestID(j, 1)].Home
	w.loseHost(lost)
	w.tick(5 * time.Second)
	w.answerAll()
	is := w.s.Jobs[j]
	if is.State != fleet.JobRunning || is.From != id || is.Incarnation != 1 || is.Restarted != 1 {
		t.Fatalf("%+v", is)
	}
	if is.Subnet == before.Subnet || is.Subnet.GuestAddr(1) != before.Subnet.GuestAddr(1) || is.Subnet.GuestMAC(0) != before.Subnet.GuestMAC(0) || is.Subnet.VNI() == before.Subnet.VNI() {
		t.Errorf("network %d after %d", is.Subnet, before.Subnet)
	}
	for _, g := range desired.GuestIDs(is) {
		if g := w.s.Guests[g]; g.State != fleet.GuestRunning || g.Home == lost || g.From != id {
			t.Errorf("%+v", g)
		}
	}
	w.exited[j] = true
	w.answerAll()
	w.tick(2 * time.Second)
	if w.s.Jobs[j].State != fleet.JobEnded {
		t.Fatalf("%+v", w.s.Jobs[j])
	}
	w.phase(id, fleet.Kept) // it was asked for
	w.must(fleet.Request{Verb: fleet.RemoveCheckpoint, Checkpoint: id})
	w.answerAll()
	if w.phase(id, fleet.Removed); len(w.points.vaults) != 0 {
		t.Errorf("vaults have %v", w.points.vaults)
	}
}

// Whatever fails, all guests run on, and nothing is left of the checkpoint.
func TestCheckpointThatFails(t *testing.T) {
	for _, verb := range []fleet.Verb{fleet.Arm, fleet.Cut, fleet.Continue, fleet.Save} {
		w := newWorld(t, "host1", "host2", "host3")
		j := w.running(2, nil)
		w.points.failing = verb
		id := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}).Checkpoint
		w.answerAll()
		if c := w.phase(id, fleet.Void); c.Cause != "it was made to fail" || w.s.Jobs[j].Newest != "" {
			t.Errorf("%s: %q", verb, c.Cause)
		}
		for _, g := range desired.GuestIDs(w.s.Jobs[j]) {
			if w.guests[w.s.Guests[g].Home][g] != fleet.Running {
				t.Errorf("%s: %s does not run", verb, g)
			}
		}
		if len(w.points.vaults)+len(w.points.guests) > 0 {
			t.Errorf("%s: left: %v %v", verb, w.points.vaults, w.points.guests)
		}
	}
}

// A host that is lost while a checkpoint is made ends it, in each phase.
func TestHostLostDuringACheckpoint(t *testing.T) {
	for _, phase := range []fleet.CheckpointPhase{fleet.Arming, fleet.Cutting, fleet.Continuing, fleet.Saving} {
		w := newWorld(t, "host1", "host2", "host3")
		j := w.running(2, func(s *fleet.JobSpec) { s.Restarts = 3 })
		id := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}).Checkpoint
		for range 20 {
			if w.s.Checkpoints[id].Phase == phase {
				break
			}
			w.answer(slices.IndexFunc(w.wire, func(o fleet.Order) bool { return o.Checkpoint != "" }))
		}
		w.phase(id, phase)
		w.loseHost(w.s.Guests[desired.GuestID(j, 1)].Home)
		w.tick(time.Minute)
		w.answerAll()
		w.phase(id, fleet.Void)
		if is := w.s.Jobs[j]; is.State != fleet.JobRunning || is.From != "" {
			t.Errorf("lost in %s: %s, from %q", phase, is.State, is.From)
		}
	}
}

// A move waits for a checkpoint, and a checkpoint for a move.
func TestMovesAndCheckpointsWaitForEachOther(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	j := w.running(1, nil)
	g := w.s.Guests[desired.GuestID(j, 0)]
	id := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}).Checkpoint
	move := w.must(fleet.Request{Verb: fleet.Migrate, Guest: g.ID}).Moves[0]
	for i := 0; i >= 0; i = slices.IndexFunc(w.wire, func(o fleet.Order) bool { return o.Migration != "" }) {
		if w.wire[i].Migration != "" {
			w.answer(i)
		} else {
			w.answer(slices.IndexFunc(w.wire, func(o fleet.Order) bool { return o.Verb == fleet.Arm }))
		}
	}
	w.tick(3 * time.Second)
	if m := w.s.Migrations[w.s.Moves[move].Migrations[0]]; m.Phase != fleet.Waiting {
		t.Fatalf("it is %s while the checkpoint is %s", m.Phase, w.s.Checkpoints[id].Phase)
	}
	for w.s.Checkpoints[id].Phase != fleet.Kept {
		w.answer(slices.IndexFunc(w.wire, func(o fleet.Order) bool { return o.Checkpoint != "" }))
	}
	w.tick(2 * time.Second)
	next := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j})
	if w.phase(next.Checkpoint, fleet.Due); len(next.Notes) == 0 {
		t.Error("nothing says that it waits")
	}
	w.answerAll()
	w.tick(2 * time.Second)
	w.answerAll()
	if c := w.phase(next.Checkpoint, fleet.Kept); c.Guests[0].Host == g.Home || w.s.Moves[move].Ended.IsZero() {
		t.Errorf("%+v", c)
	}
}

// A suspended job has no guests and no network, and goes on from its checkpoint when it is resumed.
func TestSuspendAndResume(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3", "host4", "host5")
	small := w.s.Hosts["host4"]
	small.Facts.Capacity.MemoryBytes = 600 << 20
	w.s.Hosts["host4"] = small
	j := w.running(2, func(s *fleet.JobSpec) { s.On = []fleet.HostID{"host1", "host2"} })
	id := w.must(fleet.Request{Verb: fleet.SuspendJob, Job: j}).Checkpoint
	w.answerAll()
	if is := w.s.Jobs[j]; is.State != fleet.JobSuspended || is.From != id || is.Subnet != 0 {
		t.Fatalf("%+v", is)
	}
	w.tick(10 * time.Second)
	if len(w.wire) > 0 || w.s.Jobs[j].State != fleet.JobSuspended {
		t.Fatalf("%v", w.wire)
	}
	if _, err := w.ask(fleet.Request{Verb: fleet.RemoveCheckpoint, Checkpoint: id}); err == nil {
		t.Error("the only state of a suspended job was removed")
	}
	for _, verb := range []fleet.RequestVerb{fleet.MakeCheckpoint, fleet.SuspendJob, fleet.SendSignal} {
		if _, err := w.ask(fleet.Request{Verb: verb, Job: j, Signal: "TERM"}); err == nil {
			t.Errorf("%s was taken", verb)
		}
	}
	for on, want := range map[fleet.HostID]string{"host9": "there is no host host9", "host4": "never fit"} {
		if _, err := w.ask(fleet.Request{Verb: fleet.ResumeJob, Job: j, On: []fleet.HostID{on}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("on %s: %v", on, err)
		}
	}
	w.must(fleet.Request{Verb: fleet.ResumeJob, Job: j, On: []fleet.HostID{"host5"}})
	w.answerAll()
	if is := w.s.Jobs[j]; is.State != fleet.JobRunning || is.From != id || w.s.Guests["j1g0"].Home != "host5" || w.s.Guests["j1g1"].Home != "host5" {
		t.Fatalf("%+v", is)
	}
	if _, err := w.ask(fleet.Request{Verb: fleet.ResumeJob, Job: j}); err == nil || !strings.Contains(err.Error(), "only a suspended job") {
		t.Errorf("%v", err)
	}
}

// Checkpoints by a plan: each interval one, as many kept as it says; all go when the program has finished.
func TestPlannedCheckpoints(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	j := w.running(1, func(s *fleet.JobSpec) { s.Checkpoint = &fleet.CheckpointPlan{Every: time.Minute, Keep: 2} })
	for range 5 {
		w.tick(62 * time.Second)
		w.answerAll()
	}
	kept := []fleet.CheckpointID{}
	for id, c := range w.s.Checkpoints {
		if c.Phase == fleet.Kept {
			kept = append(kept, id)
		} else if c.Phase != fleet.Removed {
			t.Errorf("%s is %s: %s", id, c.Phase, c.Cause)
		}
	}
	slices.Sort(kept)
	if len(kept) != 2 || w.s.Jobs[j].Newest != kept[1] || len(w.points.vaults) != 2 {
		t.Fatalf("%v, newest %s, vaults %v", kept, w.s.Jobs[j].Newest, w.points.vaults)
	}
	w.exited[j] = true
	w.answerAll()
	w.tick(2 * time.Second)
	w.answerAll()
	if len(w.points.vaults) != 0 {
		t.Errorf("vaults have %v", w.points.vaults)
	}
	w.must(fleet.Request{Verb: fleet.RemoveJob, Job: j})
	w.tick(2 * time.Second)
	w.answerAll()
	for id, c := range w.s.Checkpoints {
		if !c.Phase.Ended() {
			t.Errorf("%s is %s", id, c.Phase)
		}
	}
}

// The interval that a plan leaves to the planner follows from what a checkpoint costs.
func TestOftenByCost(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	j := w.running(1, func(s *fleet.JobSpec) { s.Checkpoint = &fleet.CheckpointPlan{} })
	if next := w.s.Jobs[j].NextCheckpoint; next.Sub(w.now) > lifecycle.FirstCheckpoint || next.IsZero() {
		t.Fatalf("the first is at %s", next)
	}
	often := func(costs time.Duration) time.Duration {
		c := fleet.Checkpoint{ID: "j1c9", Job: j, Phase: fleet.Removed, WasKept: true, Guests: []fleet.CheckpointPart{{Stop: costs}}}
		w.s.Checkpoints[c.ID] = c
		d := newDraft(w.p, state.NewIndex(w.s, nil))
		d.at = w.now
		return d.often(w.s.Jobs[j]).Round(time.Second)
	}
	// The root of 2 × 2 s × 259,200 s, less the 2 s; then the limits.
	if is := often(2 * time.Second); is != 1016*time.Second {
		t.Errorf("%s", is)
	}
	// Its host was lost eight times in a day and a half, as it seems: nine times as often as was guessed.
	home := w.s.Hosts[w.s.Guests[desired.GuestID(j, 0)].Home]
	for i := range 8 {
		home.Losses = append(home.Losses, w.now.Add(time.Duration(i-12)*3*time.Hour))
	}
	w.s.Hosts[home.ID] = home
	if is := often(2 * time.Second); is >= 450*time.Second || is <= 350*time.Second {
		t.Errorf("with losses: %s", is)
	}
	home.Losses = nil
	w.s.Hosts[home.ID] = home
	if short, long := often(time.Millisecond), often(10*time.Hour); short != shortestInterval || long != longestInterval {
		t.Errorf("%s, %s", short, long)
	}
}

// A restart: of a job that runs, of one that has ended, from its beginning, and of one that no guest can be made for.
func TestRestart(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	j := w.running(2, nil)
	ask := func(r fleet.Request) string {
		t.Helper()
		r.Verb, r.Job = fleet.Restart, j
		if _, err := w.ask(r); err != nil {
			return err.Error()
		}
		w.answerAll()
		w.tick(2 * time.Second)
		w.answerAll()
		return ""
	}
	id := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}).Checkpoint
	w.answerAll()
	second := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}).Checkpoint
	w.answerAll()
	for _, c := range []struct {
		ask   fleet.Request
		from  fleet.CheckpointID
		wrong string
	}{
		{fleet.Request{}, second, ""},
		{fleet.Request{Checkpoint: id}, id, ""},
		{fleet.Request{Beginning: true}, "", ""},
		{fleet.Request{Checkpoint: "j1c77"}, "", "has no checkpoint j1c77"},
		{fleet.Request{Checkpoint: id, Beginning: true}, "", "name one of the two"},
	} {
		if wrong := ask(c.ask); !strings.Contains(wrong, c.wrong) || (wrong == "") != (c.wrong == "") {
			t.Errorf("%+v: %q", c.ask, wrong)
		}
		if is := w.s.Jobs[j]; is.State != fleet.JobRunning || is.From != c.from {
			t.Fatalf("%+v: %s from %q", c.ask, is.State, is.From)
		}
	}
	w.exited[j] = true
	w.answerAll()
	w.exited[j] = false
	if wrong := ask(fleet.Request{}); wrong != "" || w.s.Jobs[j].State != fleet.JobRunning || w.s.Jobs[j].From != second {
		t.Errorf("after its end: %q, %+v", wrong, w.s.Jobs[j])
	}
	// One part of the newest cannot be had any more: an older checkpoint is taken.
	delete(w.points.vaults, string(second)+"/"+string(desired.GuestID(j, 1)))
	if wrong := ask(fleet.Request{}); wrong != "" || w.s.Jobs[j].State != fleet.JobRunning || w.s.Jobs[j].From != id {
		t.Errorf("after a loss: %q, %s from %q, %s", wrong, w.s.Jobs[j].State, w.s.Jobs[j].From, w.s.Jobs[j].Cause)
	}
}

// A job's files are served by the same host where it goes on from a checkpoint, also without a guest: its guests have handles
// that no other host has signed. Where that host is gone, and where the job begins at its beginning, another one does.
func TestSameHostServesFilesAgain(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3", "host4")
	j := w.running(1, func(s *fleet.JobSpec) { s.Export, s.Restarts = "/home/me", 3 })
	share := w.s.Jobs[j].ShareHost
	w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j})
	w.answerAll()
	again := func(r fleet.Request) fleet.Job {
		t.Helper()
		r.Verb, r.Job = fleet.Restart, j
		w.must(r)
		w.answerAll()
		w.tick(5 * time.Second)
		w.answerAll()
		return w.s.Jobs[j]
	}
	w.must(fleet.Request{Verb: fleet.Drain, Host: share})
	w.answerAll()
	is := again(fleet.Request{})
	if home := w.s.Guests[desired.GuestID(j, 0)].Home; is.State != fleet.JobRunning || is.From == "" || is.ShareHost != share || home == share {
		t.Errorf("%s from %q, files by %s and before by %s, guest on %s", is.State, is.From, is.ShareHost, share, home)
	}
	if is = again(fleet.Request{Beginning: true}); is.ShareHost == share || is.From != "" {
		t.Errorf("from %q, files by %s", is.From, is.ShareHost)
	}
}

// What a checkpoint does not have of a job's files is said once before the first, and by explain.
func TestFilesThatStay(t *testing.T) {
	told := func(a fleet.Answer) bool { return slices.Contains(a.Notes, filesStay) }
	w := newWorld(t, "host1", "host2", "host3")
	j := w.running(1, func(s *fleet.JobSpec) { s.Export = "/home/me" })
	if a := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}); !told(a) {
		t.Errorf("before the first: %q", a.Notes)
	}
	w.answerAll()
	if a := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}); told(a) {
		t.Errorf("before the second: %q", a.Notes)
	}
	lines, _ := w.p.Explain(w.s, Subject{Job: j})
	if text := strings.Join(lines, " "); strings.Count(text, filesStay[1:]) != 1 {
		t.Errorf("%s", text)
	}
	if spec := (fleet.JobSpec{Export: "/home/x"}); planned(spec, nil) != nil {
		t.Error("a job without checkpoints is told")
	}
	if spec := (fleet.JobSpec{Export: "/home/x", Checkpoint: &fleet.CheckpointPlan{}}); len(planned(spec, nil)) != 1 {
		t.Error("a job with checkpoints is not told")
	}
	if said := aboutFiles(fleet.JobSpec{Export: "/home/x", Clones: true, Machine: "m"}, map[fleet.HostID]fleet.Host{"a": {Facts: fleet.Facts{Machine: "m", Vault: &fleet.VaultFacts{}}}}); !slices.Equal(said, []string{clonesNear}) {
		t.Errorf("of a machine whose agent nobody reaches it says %q", said)
	}
	if said := aboutFiles(fleet.JobSpec{Export: "/home/x", Clones: true, Machine: "m"}, map[fleet.HostID]fleet.Host{"a": {Facts: fleet.Facts{Machine: "m", Vault: &fleet.VaultFacts{Listen: "198.18.0.1:7"}}}}); !slices.Equal(said, []string{clonesStay}) {
		t.Errorf("where files can be cloned: %q", said)
	}
}

// A vault that is away is waited for, for a while.
func TestVaultAway(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	j := w.running(1, nil)
	id := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}).Checkpoint
	w.answerAll()
	vault := w.s.Checkpoints[id].Guests[0].Vault
	w.cut(vault)
	w.tick(30 * time.Second)
	w.must(fleet.Request{Verb: fleet.Restart, Job: j})
	w.answerAll()
	w.tick(5 * time.Second)
	if is := w.s.Jobs[j]; is.State != fleet.JobPending {
		t.Fatalf("%s", is.State)
	}
	lines, _ := w.p.Explain(w.s, Subject{Job: j})
	if text := strings.Join(lines, " "); !strings.Contains(text, ", which has a part of its checkpoint "+string(id)) {
		t.Errorf("%s", text)
	}
	w.tick(awaitVaults + 5*time.Second)
	w.answerAll()
	if is := w.s.Jobs[j]; is.State != fleet.JobRunning || is.From != "" {
		t.Errorf("%s from %q", is.State, is.From)
	}
}

// Who does not want to wait for a vault begins without it, as the job says.
func TestRestartWithoutItsVault(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	j := w.running(1, nil)
	id := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}).Checkpoint
	w.answerAll()
	w.cut(w.s.Checkpoints[id].Guests[0].Vault)
	w.tick(30 * time.Second)
	w.must(fleet.Request{Verb: fleet.Restart, Job: j, Checkpoint: id})
	if _, err := w.ask(fleet.Request{Verb: fleet.RemoveCheckpoint, Checkpoint: id}); err == nil {
		t.Error("what a stopping job is to begin from was removed")
	}
	w.answerAll()
	w.tick(2 * awaitVaults)
	if is := w.s.Jobs[j]; is.State != fleet.JobPending || is.From != id {
		t.Fatalf("%s from %q", is.State, is.From)
	}
	w.must(fleet.Request{Verb: fleet.Restart, Job: j, Beginning: true})
	w.answerAll()
	if is := w.s.Jobs[j]; is.State != fleet.JobRunning || is.From != "" {
		t.Errorf("%s from %q", is.State, is.From)
	}
}

// Guests that have to leave their host at once do not wait until a checkpoint is saved.
func TestOwnerDoesNotWaitForACheckpoint(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	j := w.running(1, nil)
	id := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}).Checkpoint
	for w.s.Checkpoints[id].Phase != fleet.Saving {
		w.answer(slices.IndexFunc(w.wire, func(o fleet.Order) bool { return o.Checkpoint != "" }))
	}
	home := w.s.Guests[desired.GuestID(j, 0)].Home
	h := w.s.Hosts[home]
	h.ForOwner = true
	w.s.Hosts[home] = h
	w.tick(2 * time.Second)
	if c := w.s.Checkpoints[id]; c.Phase.Traits().Forward || !strings.Contains(c.Cause, "needed by its owner") {
		t.Errorf("it is %s: %s", c.Phase, c.Cause)
	}
}

// A vault that other hosts do not reach is for the guests of its own host alone.
func TestVaultThatNobodyReaches(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	j := w.running(1, nil)
	home := w.s.Guests[desired.GuestID(j, 0)].Home
	var reached fleet.HostID
	for id, h := range w.s.Hosts {
		if id == home {
			continue
		}
		if v := *h.Facts.Vault; reached == "" {
			reached, h.Facts.Vault = id, &v
		} else {
			v.Listen, h.Facts.Vault = "", &v
		}
		w.s.Hosts[id] = h
	}
	id := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}).Checkpoint
	if at := w.s.Checkpoints[id].Guests[0].Vault; at != reached {
		t.Errorf("it is kept on %s, and %s can be reached", at, reached)
	}
}

// A host that others do not reach, since its agent proves nothing, does not reach theirs: its guests are kept there.
func TestHostThatReachesNoVault(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	j := w.running(1, nil)
	home := w.s.Guests[desired.GuestID(j, 0)].Home
	h := w.s.Hosts[home]
	v := *h.Facts.Vault
	v.Listen, h.Facts.Vault = "", &v
	w.s.Hosts[home] = h
	id := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}).Checkpoint
	if at := w.s.Checkpoints[id].Guests[0].Vault; at != home {
		t.Errorf("it is kept on %s, which %s does not reach", at, home)
	}
}

// Where no vault is, or a host cannot, the answer says so.
func TestNoCheckpoint(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	j := w.running(1, nil)
	home := w.s.Guests[desired.GuestID(j, 0)].Home
	refused := func(want string) {
		t.Helper()
		if _, err := w.ask(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for id, h := range w.s.Hosts {
		h.Facts.Vault = &fleet.VaultFacts{FreeBytes: 1 << 20, Listen: "198.18.0.1:7"}
		w.s.Hosts[id] = h
	}
	refused("no host that is heard has a vault with 512 MiB free")
	h := w.s.Hosts[home]
	h.Facts.Abilities = map[fleet.Kind]fleet.Abilities{fleet.VM: {Live: true, NoCheckpoint: "QEMU is too old"}}
	w.s.Hosts[home] = h
	refused("QEMU is too old")
	if _, err := w.ask(fleet.Request{Verb: fleet.MakeCheckpoint, Job: "j99"}); err == nil {
		t.Error("a checkpoint of no job")
	}
}
