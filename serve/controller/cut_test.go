package controller

import (
	"context"
	"testing"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// A job that goes on from a checkpoint writes nothing twice, whatever it had written since, also after the controller was started
// again and in an incarnation that did not begin at the output's beginning.
func TestOutputGoesOnAtTheCut(t *testing.T) {
	dir := t.TempDir()
	jobs := map[fleet.JobID]fleet.Job{"j1": {ID: "j1", State: fleet.JobRunning}}
	open := func() (*spool, *stream) {
		t.Helper()
		s := newSpool(dir)
		if err := s.open(jobs); err != nil {
			t.Fatal(err)
		}
		st, err := s.stream("j1", fleet.Stdout)
		if err != nil {
			t.Fatal(err)
		}
		return s, st
	}
	put := func(st *stream, incarnation int, offset int64, text string, want int64) {
		t.Helper()
		n, err := st.deliverOutput(t.Context(), wire.Place{Job: "j1", Stream: fleet.Stdout, Offset: offset, Incarnation: incarnation}, []byte(text), false)
		if n != want || err != nil {
			t.Fatalf("%q: %d, %v", text, n, err)
		}
	}
	become := func(s *spool, incarnation int, from fleet.CheckpointID, state fleet.JobState) {
		t.Helper()
		j := jobs["j1"]
		j.Incarnation, j.From, j.State = incarnation, from, state
		if jobs["j1"] = j; s.followIncarnation(j) != nil {
			t.Fatal(s.followIncarnation(j))
		}
	}
	follow := func(s *spool, phase fleet.CheckpointPhase, id fleet.CheckpointID) {
		t.Helper()
		if err := s.followCheckpoints([]fleet.Checkpoint{{ID: id, Job: "j1", Phase: phase}}); err != nil {
			t.Fatal(err)
		}
	}
	s, st := open()
	put(st, 0, 0, "lost\n", 5)
	become(s, 1, "", fleet.JobRunning) // from its beginning
	put(st, 1, 0, "one ", 4)
	follow(s, fleet.Cutting, "j1c1")
	put(st, 1, 4, "two ", 8)
	follow(s, fleet.Continuing, "j1c1")
	put(st, 1, 8, "three ", 14)
	follow(s, fleet.Continuing, "j1c1") // again, by another controller
	follow(s, fleet.Kept, "j1c1")
	become(s, 2, "j1c1", fleet.JobPending) // nothing is cut off yet
	if text, _, err := st.read(context.Background(), 0); string(text) != "lost\none two three " || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	become(s, 2, "j1c1", fleet.JobStarting)
	if have := s.have("j1")[fleet.Stdout]; have != 8 {
		t.Errorf("the guest is asked for output from %d on", have)
	}
	put(st, 2, 8, "drei ", 13)
	s, st = open()
	put(st, 2, 8, "drei vier ", 18)
	if text, _, err := st.read(context.Background(), 0); string(text) != "lost\none two drei vier " || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	follow(s, fleet.Removed, "j1c1")
	become(s, 3, "j1c1", fleet.JobRunning) // what is not known any more is not cut off
	put(st, 3, 18, "five", 22)
	if _, err := st.deliverOutput(t.Context(), wire.Place{Job: "j1", Stream: fleet.Stdout, Incarnation: 2}, []byte("late"), false); err == nil {
		t.Error("an earlier incarnation's output is taken")
	}
}
