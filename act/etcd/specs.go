// This file keeps what a job was asked for apart from the job, which changes often. A specification with a large environment is
// written once, under a key of its own; each state of the job names it by its digest.

package etcd

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pagurus/fleet"
)

// apartBytes is how long a specification is that has a key of its own. With a shorter one a second key would take more.
const apartBytes = 2 << 10

// storedJob is a job as it is stored.
type storedJob struct {
	fleet.Job
	Spec  *fleet.JobSpec `json:"spec,omitempty"`  // nil: it is apart
	Apart fleet.Digest   `json:"apart,omitempty"` // of the specification that is apart
}

// storedSpec is a specification under its own key.
type storedSpec struct {
	Job  fleet.JobID     `json:"job"`
	Spec json.RawMessage `json:"spec"`
}

// specs is which specifications are apart at a revision of the store.
type specs struct {
	mu      sync.Mutex
	at      int64
	of      map[fleet.JobID]fleet.Digest // nil: nothing is known yet
	nextJob uint64
}

// after is what a change makes of that.
type after struct {
	from    int64
	apart   map[fleet.JobID]fleet.Digest // "": no longer
	nextJob uint64                       // 0: as before
	adds    bool                         // a job that was not there
}

// encode returns the operations of a change of the store at revision from, and what is known after it.
func (s *specs) encode(from int64, c fleet.Changeset) ([]clientv3.Op, after, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, then := writer{apart: map[fleet.JobID]fleet.Digest{}}, after{from: from}
	known := s.at == from // otherwise the change meets a conflict
	if known {
		w.known = s.of
	}
	if c.Cluster != nil {
		then.nextJob = c.Cluster.NextJob
		then.adds = known && then.nextJob > s.nextJob
	}
	w.encode(c)
	then.apart = w.apart
	return w.ops, then, w.err
}

// committed notes what encode has returned, after its commit.
func (s *specs) committed(revision int64, c after) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at != c.from || s.of == nil {
		return
	}
	s.at, s.nextJob = revision, cmp.Or(c.nextJob, s.nextJob)
	for id, digest := range c.apart {
		if s.of[id] = digest; digest == "" {
			delete(s.of, id)
		}
	}
}

// loaded notes what the whole store has.
func (s *specs) loaded(snap fleet.Snapshot, apart map[fleet.JobID]fleet.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if snap.Revision > s.at {
		s.at, s.of, s.nextJob = snap.Revision, apart, snap.Cluster.NextJob
	}
}

func specKey(id fleet.JobID) string { return key("specs", id) }

// putJob writes a job, and its specification if that is apart and not there already.
func (w *writer) putJob(j fleet.Job) {
	text, err := json.Marshal(j.Spec)
	if err != nil && w.err == nil {
		w.err = fmt.Errorf("encoding what job %s was asked for: %w", j.ID, err)
	}
	if len(text) < apartBytes {
		w.put(key("jobs", j.ID), j)
		w.dropSpec(j.ID)
		return
	}
	digest := digestOf(text)
	w.put(key("jobs", j.ID), storedJob{Job: j, Apart: digest})
	if w.known == nil || w.known[j.ID] != digest {
		w.put(specKey(j.ID), storedSpec{j.ID, text})
	}
	w.apart[j.ID] = digest
}

// dropSpec removes a job's specification that may be apart.
func (w *writer) dropSpec(id fleet.JobID) {
	if _, is := w.known[id]; is || w.known == nil {
		w.add(specKey(id), clientv3.OpDelete(specKey(id)))
		w.apart[id] = ""
	}
}

func digestOf(text []byte) fleet.Digest {
	sum := sha256.Sum256(text)
	return fleet.Digest("sha256-" + hex.EncodeToString(sum[:]))
}

// reading is a snapshot while it is read. Jobs come before their specifications.
type reading struct {
	snap  fleet.Snapshot
	apart map[fleet.JobID]fleet.Digest // of jobs that have been read
	specs map[fleet.JobID]json.RawMessage
}

func newReading() *reading {
	return &reading{fleet.NewSnapshot(), map[fleet.JobID]fleet.Digest{}, map[fleet.JobID]json.RawMessage{}}
}

// job takes a job as it is stored.
func (r *reading) job(at, id string, value []byte) error {
	stored := map[fleet.JobID]storedJob{}
	if err := object(stored, at, id, value, func(j storedJob) fleet.JobID { return j.ID }); err != nil {
		return err
	}
	for _, j := range stored {
		if (j.Spec == nil) == (j.Apart == "") {
			return damaged(at, errors.New("what it was asked for is not in one place"))
		}
		if j.Spec == nil {
			r.apart[j.ID] = j.Apart
		} else if j.Job.Spec = *j.Spec; sound(at, j.Job) != nil {
			return sound(at, j.Job)
		}
		r.snap.Jobs[j.ID] = j.Job
	}
	return nil
}

// spec takes a specification that is apart.
func (r *reading) spec(at, id string, value []byte) error {
	stored := map[fleet.JobID]storedSpec{}
	err := object(stored, at, id, value, func(s storedSpec) fleet.JobID { return s.Job })
	for job, s := range stored {
		r.specs[job] = s.Spec
	}
	return err
}

// whole puts jobs and specifications together.
func (r *reading) whole() (fleet.Snapshot, error) {
	for id, digest := range r.apart {
		at, text, j := specKey(id), r.specs[id], r.snap.Jobs[id]
		if digestOf(text) != digest {
			return fleet.Snapshot{}, damaged(at, fmt.Errorf("it is not what job %s was asked for", id))
		}
		if err := read(at, text, &j.Spec); err != nil {
			return fleet.Snapshot{}, err
		}
		if err := sound(at, j); err != nil {
			return fleet.Snapshot{}, err
		}
		r.snap.Jobs[id] = j
	}
	return r.snap, nil
}
