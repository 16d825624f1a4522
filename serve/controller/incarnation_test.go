package controller

import (
	"context"
	"testing"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// What an incarnation writes follows on what earlier ones wrote, also after the controller was started again, and an
// earlier one's output is refused.
func TestOutputOfIncarnations(t *testing.T) {
	dir := t.TempDir()
	job := func(n int) map[fleet.JobID]fleet.Job {
		return map[fleet.JobID]fleet.Job{"j1": {ID: "j1", State: fleet.JobRunning, Incarnation: n}}
	}
	open := func(n int) (*spool, *stream) {
		s := newSpool(dir)
		if err := s.open(job(n)); err != nil {
			t.Fatal(err)
		}
		st, err := s.stream("j1", fleet.Stdout)
		if err != nil {
			t.Fatal(err)
		}
		return s, st
	}
	put := func(st *stream, incarnation int, offset int64, text string, eof bool) (int64, error) {
		return st.deliverOutput(t.Context(), wire.Place{Job: "j1", Stream: fleet.Stdout, Offset: offset, Incarnation: incarnation}, []byte(text), eof)
	}
	s, st := open(0)
	if n, err := put(st, 0, 0, "first, ", true); n != 7 || err != nil {
		t.Fatal(n, err)
	}
	if err := s.beginIncarnation("j1", 1, ""); err != nil {
		t.Fatal(err)
	}
	if have := s.have("j1")[fleet.Stdout]; have != 0 {
		t.Errorf("the new one is said to have %d bytes", have)
	}
	if n, err := put(st, 1, 0, "sec", false); n != 3 || err != nil {
		t.Errorf("%d %v", n, err)
	}
	if _, err := put(st, 0, 7, "late", false); err == nil {
		t.Error("the old one's output is taken")
	}
	s, st = open(1)
	if have := s.have("j1")[fleet.Stdout]; have != 3 {
		t.Errorf("after a restart it is said to have %d bytes", have)
	}
	if n, err := put(st, 1, 1, "econd", true); n != 6 || err != nil {
		t.Errorf("%d %v", n, err)
	}
	if text, ended, err := st.read(context.Background(), 0); string(text) != "first, second" || !ended || err != nil {
		t.Errorf("%q %v %v", text, ended, err)
	}
	if current(job(1)["j1"], wire.Place{}) == nil || current(job(1)["j1"], wire.Place{Incarnation: 1}) != nil {
		t.Error("the wrong incarnation is the present one")
	}
}
