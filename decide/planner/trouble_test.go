package planner

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/decide/desired"
	"pagurus/fleet"
)

// Of two checkpoints at once the second is refused while the first is made, in every phase, and a plan's waits.
func TestTwoCheckpointsAtOnce(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	j := w.running(2, func(s *fleet.JobSpec) { s.Checkpoint = &fleet.CheckpointPlan{Every: 10 * time.Minute, Keep: 2} })
	other := w.running(1, nil)
	id := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}).Checkpoint
	w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: other}) // of another job: nobody is in its way
	seen := map[fleet.CheckpointPhase]bool{}
	for range 100 {
		phase := w.s.Checkpoints[id].Phase
		if phase == fleet.Kept {
			break
		}
		seen[phase] = true
		if _, err := w.ask(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}); err == nil || !strings.Contains(err.Error(), string(id)+" of "+string(j)+" is being made") {
			t.Fatalf("while it is %s: %v", phase, err)
		}
		if i := w.next(); i >= 0 {
			w.answer(i)
		}
	}
	w.phase(id, fleet.Kept)
	if len(seen) < 4 {
		t.Errorf("asked only in %v", seen)
	}
	w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j})
	w.tick(11 * time.Minute) // the planned one is due, and hosts do not answer
	being := 0
	for _, c := range w.s.Checkpoints {
		if c.Job == j && beingMade(c) {
			being++
		}
	}
	if being > 1 {
		t.Errorf("%d are made at once", being)
	}
	w.answerAll()
	if w.s.Jobs[j].State != fleet.JobRunning {
		t.Errorf("%+v", w.s.Jobs[j])
	}
}

// A job that goes on from its checkpoint where there is too little room waits in the queue, says for what, and goes on from there
// when there is room.
func TestRestoreWaitsForRoom(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	j := w.running(1, func(s *fleet.JobSpec) { s.Need.MemoryBytes, s.Restarts = 2<<30, 1 })
	id := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}).Checkpoint
	w.answerAll()
	c := w.phase(id, fleet.Kept)
	home := c.Guests[0].Host
	full := w.running(1, func(s *fleet.JobSpec) { s.Need.MemoryBytes, s.On = 2<<30, []fleet.HostID{c.Guests[0].Vault} })
	w.loseHost(home)
	w.tick(10 * time.Minute)
	if is := w.s.Jobs[j]; is.State != fleet.JobPending || is.Incarnation != 1 || is.From != id {
		t.Fatalf("without room: %+v", is)
	}
	if text := w.explain(Subject{Job: j}); !strings.Contains(text, "no room for guest 1 of 1") || !strings.Contains(text, string(id)) {
		t.Errorf("%s", text)
	}
	w.must(fleet.Request{Verb: fleet.Cancel, Job: full})
	w.answerAll()
	w.tick(2 * time.Second)
	w.answerAll()
	if is := w.s.Jobs[j]; is.State != fleet.JobRunning || is.From != id {
		t.Errorf("with room: %s from %q", is.State, is.From)
	}
	w.phase(id, fleet.Kept)
}

// A guest is given the CPU that its host's agent names, keeps it when it moves and in its checkpoints, whatever is said later.
func TestGuestKeepsItsCPU(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	set := func(model string) {
		for id, h := range w.s.Hosts {
			h.Facts.Abilities = map[fleet.Kind]fleet.Abilities{fleet.VM: {Live: true, Checkpoint: true, Accelerator: fleet.KVM, CPU: "one", Model: model}}
			h.Facts.Topology = &fleet.Topology{Level: "x86-64-v3"}
			w.s.Hosts[id] = h
		}
	}
	for model, want := range map[string]string{"": "", fleet.HostCPU: "", "x86-64-v2": "x86-64-v2", "qemu64,-x2apic": "qemu64,-x2apic"} {
		set(model)
		j := w.running(1, func(s *fleet.JobSpec) { s.Restarts = 1 })
		if got := w.s.Guests[desired.GuestID(j, 0)].CPU; got != want {
			t.Errorf("where guests get %q one has %q", model, got)
		}
		id := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}).Checkpoint
		w.answerAll()
		set("x86-64-v1")
		home := w.phase(id, fleet.Kept).Guests[0].Host
		w.loseHost(home)
		w.tick(10 * time.Minute)
		w.answerAll()
		if g := w.s.Guests[desired.GuestID(j, 0)]; g.CPU != want || g.From != id {
			t.Errorf("from its checkpoint %s, of a guest with %q, one begins with %q (%q)", id, want, g.CPU, g.From)
		}
		w = newWorld(t, "host1", "host2")
	}
}

// What the cluster's rules say of the CPU of virtual machines counts more than what hosts' agents are told, for those that start from then on. A job
// is refused for which there is no processor of the level.
func TestRulesGiveTheCPU(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	set := func(level string) {
		w.must(fleet.Request{Verb: fleet.SetRules, Rules: &fleet.Rules{CPU: level}, By: fleet.Caller{Admin: true}})
	}
	for id, h := range w.s.Hosts {
		h.Facts.Abilities = map[fleet.Kind]fleet.Abilities{fleet.VM: {Live: true, Accelerator: fleet.KVM, CPU: string(id), Model: "EPYC"}}
		h.Facts.Topology = &fleet.Topology{Level: "x86-64-v3"}
		w.s.Hosts[id] = h
	}
	tuned := func(s *fleet.JobSpec) { s.Tune = fleet.Tune{Pin: true} }
	for _, c := range []struct {
		rule, cpu, shape string
	}{{"", "EPYC", ""}, {"x86-64-v2", "x86-64-v2", "x86-64-v2"}, {"x86-64-v3", "x86-64-v3", "x86-64-v3"}, {fleet.HostCPU, "", ""}} {
		set(c.rule)
		g := w.s.Guests[desired.GuestID(w.running(1, tuned), 0)]
		if g.CPU != c.cpu || g.Shape == nil || g.Shape.CPU != c.shape {
			t.Errorf("with the rule %q a guest has %q and the shape %+v", c.rule, g.CPU, g.Shape)
		}
	}
	set("x86-64-v4")
	if _, err := w.ask(submission(1)); err == nil || !strings.Contains(err.Error(), "has no CPU of level x86-64-v4, which virtual machines get that start") {
		t.Errorf("without a host of the level: %v", err)
	}
	set("x86-64-v3")
	w.running(1, nil)
}

// A job is not made from a checkpoint where a processor lacks what its programs may use, or guests run by something else: it waits
// for a host that has it.
func TestRestoreNeedsItsProcessor(t *testing.T) {
	had := fleet.Abilities{Live: true, Checkpoint: true, Accelerator: "tcg", CPU: "max", Processor: "avx sse"}
	kvm, sse, more := had, had, had
	kvm.Accelerator, sse.Processor, more.Processor = fleet.KVM, "sse", "aes avx sse"
	for _, c := range []struct {
		has  fleet.Abilities
		says string // empty: it goes on there
	}{
		{had, ""}, {more, ""}, {sse, "has a processor without avx"}, {kvm, "runs guests by kvm, the guest runs by tcg"},
		{fleet.Abilities{Live: true, Accelerator: "tcg", CPU: "max", Processor: "avx sse", NoCheckpoint: "QEMU is too old"}, "cannot make a guest from a checkpoint: QEMU is too old"},
	} {
		w := newWorld(t, "host1", "host2", "host3")
		able := func(id fleet.HostID, a fleet.Abilities) {
			h := w.s.Hosts[id]
			h.Facts.Abilities = map[fleet.Kind]fleet.Abilities{fleet.VM: a}
			w.s.Hosts[id] = h
		}
		for id := range w.s.Hosts {
			able(id, had)
		}
		j := w.running(1, func(s *fleet.JobSpec) { s.Restarts = 1 })
		id := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}).Checkpoint
		w.answerAll()
		home := w.phase(id, fleet.Kept).Guests[0].Host
		for id := range w.s.Hosts {
			if id != home {
				able(id, c.has)
			}
		}
		w.loseHost(home)
		is := w.s.Jobs[j]
		if c.says == "" {
			if is.State != fleet.JobRunning || is.From != id {
				t.Errorf("%+v: %s from %q", c.has, is.State, is.From)
			}
			continue
		}
		if text := w.explain(Subject{Job: j}); is.State != fleet.JobPending || !strings.Contains(text, c.says) {
			t.Errorf("%s: %s, %s", c.says, is.State, text)
		}
		for id := range w.s.Hosts {
			able(id, had)
		}
		w.tick(2 * time.Second)
		w.answerAll()
		if is := w.s.Jobs[j]; is.State != fleet.JobRunning || is.From != id {
			t.Errorf("%s, and then a host has it: %s from %q", c.says, is.State, is.From)
		}
	}
}

// A job that reaches the Internet is told that connections to there are no part of its checkpoint; when its gateway's host is lost
// it goes on with the same addresses behind another one.
func TestCheckpointOfAJobThatTalksToTheOutside(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	w.lets("host1", "host2")
	r := outward(1, "host1", "host2")
	r.Spec.Restarts = 1
	j := w.must(r).Job
	w.answerAll()
	was := w.s.Jobs[j]
	answer := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j})
	if !slices.Contains(answer.Notes, outwardLost) {
		t.Errorf("told: %q", answer.Notes)
	}
	w.answerAll()
	w.phase(answer.Checkpoint, fleet.Kept)
	if text := w.explain(Subject{Job: j}); !strings.Contains(text, "connections to the Internet are no part") {
		t.Errorf("%s", text)
	}
	w.loseHost(was.Gateway)
	is := w.s.Jobs[j]
	if is.State != fleet.JobRunning || is.From != answer.Checkpoint || is.Gateway == was.Gateway || is.Gateway == "" ||
		is.Subnet.GuestAddr(0) != was.Subnet.GuestAddr(0) || is.Subnet.GatewayAddr() != was.Subnet.GatewayAddr() || is.Subnet == was.Subnet {
		t.Errorf("before: %+v\nafter: %+v", was, is)
	}
	if got := gates(w, j); len(got) != 1 || got[0] != is.Gateway {
		t.Errorf("the gateways are %v", got)
	}
}

// A vault that its host says is not there counts as away, and the words say so.
func TestVaultIsNotOpen(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	j := w.running(1, nil)
	id := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}).Checkpoint
	w.answerAll()
	vault := w.phase(id, fleet.Kept).Guests[0].Vault
	h := w.s.Hosts[vault]
	had := h.Facts.Vault
	h.Facts.Vault = nil
	w.s.Hosts[vault] = h
	w.must(fleet.Request{Verb: fleet.Restart, Job: j})
	w.answerAll()
	w.tick(5 * time.Second)
	if text := w.explain(Subject{Job: j}); w.s.Jobs[j].State != fleet.JobPending || !strings.Contains(text, "the vault of "+string(vault)+", which has a part of its checkpoint "+string(id)+", is not there") &&
		!strings.Contains(text, "The vault of "+string(vault)) {
		t.Errorf("%s: %s", w.s.Jobs[j].State, text)
	}
	h = w.s.Hosts[vault]
	h.Facts.Vault = had
	w.s.Hosts[vault] = h
	w.tick(2 * time.Second)
	w.answerAll()
	if is := w.s.Jobs[j]; is.State != fleet.JobRunning || is.From != id {
		t.Errorf("when it is back: %s from %q", is.State, is.From)
	}
}

// Guests that are moving when their job begins again from a checkpoint, or that are lost during both, leave nothing behind.
func TestMoveMeetsACheckpointAndALoss(t *testing.T) {
	for loses := range 12 {
		w := newWorld(t, "host1", "host2", "host3", "host4")
		j := w.running(2, func(s *fleet.JobSpec) { s.Restarts = 2 })
		first := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}).Checkpoint
		w.answerAll()
		w.phase(first, fleet.Kept)
		g := fleet.GuestID(j) + "g0"
		home := w.s.Guests[g].Home
		w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: j})
		w.must(fleet.Request{Verb: fleet.Migrate, Guest: g})
		for range loses {
			if i := w.next(); i >= 0 {
				w.answer(i)
			}
		}
		w.loseHost(home)
		w.tick(time.Minute)
		w.answerAll()
		is := w.s.Jobs[j]
		if is.State != fleet.JobRunning || is.Result != "" {
			t.Errorf("after %d answers: %+v", loses, is)
		}
		for _, m := range w.s.Migrations {
			if !m.Phase.Ended() {
				t.Errorf("after %d answers a move is left: %+v", loses, m)
			}
		}
		for _, c := range w.s.Checkpoints {
			if beingMade(c) {
				t.Errorf("after %d answers a checkpoint is left: %+v", loses, c)
			}
		}
	}
}

// A job of both kinds goes on elsewhere from one checkpoint, each guest as the kind that it was, and on a host for that.
func TestCheckpointOfBothKinds(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3", "host4")
	can := func(id fleet.HostID, k fleet.Kind, is fleet.Abilities) {
		h := w.s.Hosts[id]
		is.Live, is.Checkpoint = true, true
		h.Facts.Abilities = map[fleet.Kind]fleet.Abilities{k: is}
		w.s.Hosts[id] = h
	}
	for _, id := range []fleet.HostID{"host1", "host4"} {
		can(id, fleet.VM, fleet.Abilities{Accelerator: "kvm"})
	}
	for _, id := range []fleet.HostID{"host2", "host3"} {
		can(id, fleet.Container, fleet.Abilities{Processor: "sse2"})
	}
	j := w.running(2, func(s *fleet.JobSpec) {
		s.Kind, s.On, s.Need.MemoryBytes = fleet.Auto, []fleet.HostID{"host1", "host2"}, 1500<<20
	})
	kinds := map[fleet.GuestID]fleet.Kind{}
	for _, g := range desired.GuestIDs(w.s.Jobs[j]) {
		kinds[g] = w.s.Guests[g].Kind
	}
	if kinds["j1g0"] == kinds["j1g1"] {
		t.Fatalf("kinds: %v", kinds)
	}
	id := w.must(fleet.Request{Verb: fleet.SuspendJob, Job: j}).Checkpoint
	w.answerAll()
	w.phase(id, fleet.Kept)
	can("host3", fleet.Container, fleet.Abilities{Processor: "none"})
	said := w.must(fleet.Request{Verb: fleet.ResumeJob, Job: j, On: []fleet.HostID{"host3", "host4"}}).Notes
	if len(said) != 1 || !strings.Contains(said[0], "j1 waits: there is no room for guest") {
		t.Errorf("told: %q", said)
	}
	w.answerAll()
	w.tick(2 * time.Second)
	w.state(map[fleet.JobID]fleet.JobState{j: fleet.JobPending}) // a processor lacks what the container may use
	can("host3", fleet.Container, fleet.Abilities{Processor: "sse2 avx"})
	w.tick(2 * time.Second)
	w.answerAll()
	w.state(map[fleet.JobID]fleet.JobState{j: fleet.JobRunning})
	for g, kind := range kinds {
		want := map[fleet.Kind]fleet.HostID{fleet.VM: "host4", fleet.Container: "host3"}[kind]
		if is := w.s.Guests[g]; is.Kind != kind || is.Home != want || is.From != id {
			t.Errorf("%s, a %s: %+v", g, kind, is)
		}
	}
}
