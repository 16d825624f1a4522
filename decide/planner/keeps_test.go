package planner

import (
	"strings"
	"testing"

	"pagurus/fleet"
)

// A user who has reached the limit gets no more checkpoints: none begins where that is known before, and one that turns out to be
// too much is given up. Others have theirs, and the job runs on.
func TestCheckpointsHaveAQuota(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	j := w.running(2, nil) // each part has 100 MiB
	cut := fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}
	w.p.Keeps.Each = 250 << 20
	first := w.must(cut).Checkpoint
	w.answerAll()
	w.phase(first, fleet.Kept)
	second := w.must(cut).Checkpoint
	w.answerAll()
	if c := w.phase(second, fleet.Void); !strings.Contains(c.Cause, "checkpoints of uid 0 have 200 MiB, this one has 100 MiB or more, and each user may have 250 MiB") {
		t.Error(c.Cause)
	}
	w.p.Keeps.Each = 200 << 20
	if _, err := w.ask(cut); err == nil || !strings.Contains(err.Error(), "this one has more, and each user may have 200 MiB; `pagurus checkpoint rm` removes some") {
		t.Error(err)
	}
	of := fleet.CheckpointCopy{Version: 1, UID: w.s.Jobs[j].Spec.UID, Checkpoint: w.phase(first, fleet.Kept)}
	if _, err := w.ask(fleet.Request{Verb: fleet.TakeCheckpoint, Job: j, Taken: &of}); err == nil || !strings.Contains(err.Error(), "this one has 200 MiB or more") {
		t.Error(err)
	}
	if is := w.s.Jobs[j]; is.State != fleet.JobRunning {
		t.Errorf("%+v", is)
	}
	w.must(fleet.Request{Verb: fleet.RemoveCheckpoint, Checkpoint: first})
	w.answerAll()
	third := w.must(cut).Checkpoint
	w.answerAll()
	w.phase(third, fleet.Kept)
	w.p.Keeps = fleet.CheckpointLimits{All: 100 << 20}
	if _, err := w.ask(cut); err == nil || !strings.Contains(err.Error(), "they may have 100 MiB together") {
		t.Error(err)
	}
}

// A user has a share of each vault that limits it: what is more goes to another vault, is given up, or is refused. Others have theirs.
func TestUsersHaveAShareOfEachVault(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	j := w.running(1, nil) // its part has 100 MiB
	home := w.s.Guests[fleet.GuestID(string(j)+"g0")].Home
	limit := func(each int64) {
		for id, h := range w.s.Hosts {
			if h.Facts.Vault = nil; id != home {
				h.Facts.Vault = &fleet.VaultFacts{Listen: "192.0.2.9:7462", FreeBytes: 100 << 30, EachBytes: each}
			}
			w.s.Hosts[id] = h
		}
	}
	cut := fleet.Request{Verb: fleet.MakeCheckpoint, Job: j}
	another := func() fleet.CheckpointID {
		id := w.must(cut).Checkpoint
		w.answerAll()
		return id
	}
	limit(150 << 20)
	first := another()
	second := another()
	a, b := w.phase(first, fleet.Kept).Guests[0].Vault, w.phase(second, fleet.Kept).Guests[0].Vault
	if a == b {
		t.Errorf("both are kept on %s", a)
	}
	if c := w.phase(another(), fleet.Void); !strings.Contains(c.Cause, "of uid 0 have 100 MiB, this one has 100 MiB or more, and each user may have 150 MiB there; `pagurus checkpoint rm` removes some") || !strings.HasPrefix(c.Cause, "checkpoints in the vault of host") {
		t.Error(c.Cause)
	}
	limit(100 << 20)
	if _, err := w.ask(cut); err == nil || !strings.Contains(err.Error(), "this one has more, and each user may have 100 MiB there") {
		t.Error(err)
	}
	of := fleet.CheckpointCopy{Version: 1, UID: w.s.Jobs[j].Spec.UID, Checkpoint: w.phase(first, fleet.Kept)}
	take := fleet.Request{Verb: fleet.TakeCheckpoint, Job: j, Taken: &of}
	if _, err := w.ask(take); err == nil || !strings.Contains(err.Error(), "as much left of what its user may have there") {
		t.Error(err)
	}
	other := w.running(1, func(s *fleet.JobSpec) { s.UID = 7 })
	theirs := w.must(fleet.Request{Verb: fleet.MakeCheckpoint, Job: other}).Checkpoint
	w.answerAll()
	w.phase(theirs, fleet.Kept)
	w.must(fleet.Request{Verb: fleet.RemoveCheckpoint, Checkpoint: first})
	w.answerAll()
	if at := w.phase(another(), fleet.Kept).Guests[0].Vault; at != a {
		t.Errorf("it is kept on %s and not on %s", at, a)
	}
}
