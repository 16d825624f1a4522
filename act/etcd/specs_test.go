package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"pgregory.net/rapid"

	"pagurus/fleet"
)

// long is a job whose environment is larger than all else.
func long(id string, bytes int) fleet.Job {
	j := job(id)
	j.Spec.Env = []string{"A=" + strings.Repeat("x", bytes)}
	return j
}

// A change of a job does not write again what it was asked for, also after another process has read the store.
func TestALongSpecificationIsWrittenOnce(t *testing.T) {
	ctx := contract(t)
	s := opened(t, ctx, t.TempDir())
	snap := loaded(t, ctx, s)
	j := long("j1", 40<<10)
	rev := committed(t, ctx, s, snap.Revision, fleet.Changeset{Jobs: []fleet.Job{j}})
	for range 2 {
		for _, state := range []fleet.JobState{fleet.JobStarting, fleet.JobRunning, fleet.JobEnded} {
			j.State = state
			c := fleet.Changeset{Jobs: []fleet.Job{j}}
			if n := written(t, s, rev, c); n > 4<<10 {
				t.Errorf("%s writes %d bytes", state, n)
			}
			rev = committed(t, ctx, s, rev, c)
		}
		same(t, loaded(t, ctx, s), snap.Apply(fleet.Changeset{Jobs: []fleet.Job{j}}, rev))
		s.specs = specs{}
		loaded(t, ctx, s)
	}
	j.Spec.Env, j.Alone = nil, true
	rev = committed(t, ctx, s, rev, fleet.Changeset{Jobs: []fleet.Job{j}})
	if n := keysOf(t, s, "specs/"); n != 0 {
		t.Errorf("%d long specifications stay of a job that has a short one", n)
	}
	rev = committed(t, ctx, s, rev, fleet.Changeset{Jobs: []fleet.Job{long("j1", 3000), long("j2", 3000)}})
	committed(t, ctx, s, rev, fleet.Changeset{GoneJobs: []fleet.JobID{"j1", "j2"}})
	if n := keysOf(t, s, "specs/"); n != 0 {
		t.Errorf("%d specifications stay of jobs that are gone", n)
	}
}

// written is how much a change would write.
func written(t *testing.T, s *Store, from int64, c fleet.Changeset) (n int) {
	t.Helper()
	ops, _, err := s.specs.encode(from, c)
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range ops {
		n += len(op.KeyBytes()) + len(op.ValueBytes())
	}
	return n
}

func keysOf(t *testing.T, s *Store, below string) int64 {
	t.Helper()
	got, err := s.client.Get(t.Context(), root+below, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		t.Fatal(err)
	}
	return got.Count
}

// Whatever two processes write in turn, also from what is no longer so: what is read is what was written last.
func TestSpecificationsOfTwoWriters(t *testing.T) {
	ctx := contract(t)
	one := external(t, ctx, 0)
	stores := []*Store{one, {client: one.client}}
	rapid.Check(t, func(t *rapid.T) {
		want, err := stores[0].Load(ctx)
		if err != nil {
			t.Fatal(err)
		}
		seen := []int64{want.Revision, want.Revision}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			who := rapid.IntRange(0, 1).Draw(t, "who")
			id := fmt.Sprint("j", rapid.IntRange(1, 3).Draw(t, "job"))
			c := fleet.Changeset{GoneJobs: []fleet.JobID{fleet.JobID(id)}}
			if n := rapid.SampledFrom([]int{-1, 0, 3000, 3001}).Draw(t, "bytes"); n >= 0 {
				c = fleet.Changeset{Jobs: []fleet.Job{long(id, n)}}
				c.Jobs[0].Attempt = rapid.IntRange(0, 9).Draw(t, "attempt")
			}
			switch rev, err := stores[who].Commit(ctx, seen[who], c); {
			case err == nil:
				want, seen[who] = want.Apply(c, rev), rev
			case !errors.Is(err, fleet.ErrConflict) || seen[who] == want.Revision:
				t.Fatal(err)
			default:
				got, err := stores[who].Load(ctx)
				if err != nil {
					t.Fatal(err)
				}
				alike(t, got, want)
				seen[who] = got.Revision
			}
		}
		got, err := stores[1].Load(ctx)
		if err != nil {
			t.Fatal(err)
		}
		alike(t, got, want)
	})
}

func alike(t *rapid.T, got, want fleet.Snapshot) {
	g, _ := json.Marshal(got)
	w, _ := json.Marshal(want)
	if string(g) != string(w) {
		t.Fatalf("got %s, want %s", g, w)
	}
}

// A store from before specifications were apart is read, and one in which they do not fit is damaged.
func TestSpecificationsThatDoNotFit(t *testing.T) {
	j := long("j1", 5000)
	text, _ := json.Marshal(j)
	r := newReading()
	if err := r.decode(key("jobs", j.ID), text, 5); err != nil {
		t.Fatal(err)
	}
	if snap, err := r.whole(); err != nil || len(snap.Jobs["j1"].Spec.Env) != 1 {
		t.Errorf("an older store's: %v", err)
	}
	spec, _ := json.Marshal(j.Spec)
	other, _ := json.Marshal(long("j1", 5001).Spec)
	empty, _ := json.Marshal(fleet.JobSpec{})
	for name, c := range map[string]struct{ is, named []byte }{
		"it is missing": {nil, spec}, "it is another": {other, spec}, "it has no guests": {empty, empty}, "it is nothing": {[]byte("7"), []byte("7")},
	} {
		r := newReading()
		row, _ := json.Marshal(storedJob{Job: j, Apart: digestOf(c.named)})
		if err := r.decode(key("jobs", j.ID), row, 5); err != nil {
			t.Fatal(name, err)
		}
		if c.is != nil {
			row, _ = json.Marshal(storedSpec{j.ID, c.is})
			if err := r.decode(specKey(j.ID), row, 5); err != nil {
				t.Fatal(name, err)
			}
		}
		if _, err := r.whole(); err == nil || !strings.Contains(err.Error(), specKey(j.ID)) || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, row := range map[string]string{"nowhere": `{"id":"j1"}`, "in two places": `{"id":"j1","apart":"sha256-1","spec":{"guests":1,"ranks":1}}`} {
		if err := newReading().decode(key("jobs", j.ID), []byte(row), 5); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
