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
