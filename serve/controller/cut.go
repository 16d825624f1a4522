package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"pagurus/fleet"
	"pagurus/internal/note"
)

// This file cuts a job's output off where a checkpoint was made, so that a job that goes on from there writes
// nothing twice.
//
// The length is noted while all guests are suspended. The guest that runs the program has forgotten no output
// beyond it, because what it has forgotten had come here before; and it had written all of it, because what is here came
// from there. So the restored guest can go on from this length, byte for byte.

// cutLengths is the file, beside a job's streams, with what they had at a checkpoint.
func cutLengths(c fleet.CheckpointID) string { return "cut." + string(c) }

// followCheckpoints notes the lengths of checkpoints that are cut now, and forgets those of checkpoints that there are not.
func (s *spool) followCheckpoints(all []fleet.Checkpoint) (err error) {
	for _, c := range all {
		if c.ID.Check() != nil || !jobForm.MatchString(string(c.Job)) {
			continue
		}
		path := filepath.Join(s.dir, string(c.Job), cutLengths(c.ID))
		switch {
		case c.Phase == fleet.Continuing:
			err = errors.Join(err, s.noteCut(c.Job, path))
		case c.Phase == fleet.Saving: // the guests run: until now they would have waited for the disk
			err = errors.Join(err, syncNote(path))
		case c.Phase == fleet.Taking && c.Written != nil:
			err = errors.Join(err, s.writeCut(c.Job, path, *c.Written), syncNote(path))
		case c.Phase.Ended():
			if wrong := os.Remove(path); !errors.Is(wrong, fs.ErrNotExist) {
				err = errors.Join(err, wrong)
			}
		}
	}
	return err
}

// noteCut notes the present lengths of a job's output. The first note of a checkpoint stays: the guests may run by the second.
func (s *spool) noteCut(job fleet.JobID, path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	at := fleet.Written{Began: map[string]int64{}, Sizes: map[string]int64{}}
	for _, name := range []string{fleet.Stdout, fleet.Stderr} {
		st, err := s.stream(job, name)
		if err != nil {
			return err
		}
		st.mu.Lock()
		if err = st.findStored(); err == nil {
			at.Began[name], at.Sizes[name] = st.base, st.size
		}
		st.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return s.writeCut(job, path, at)
}

// syncNote has a note survive a power loss from now on.
func syncNote(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	return err
}

func (s *spool) writeCut(job fleet.JobID, path string, at fleet.Written) error {
	text, err := json.Marshal(at)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		err = note.Write(path, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("noting how much output %s has: %w", job, err)
	}
	s.spreadNotes(job)
	return nil
}

// rewind makes a job's output end where a checkpoint was made, and says where its incarnation began then. Without a note
// of that nothing is cut off: the job goes on from what there is.
func (s *spool) rewind(job fleet.JobID, from fleet.CheckpointID, before began) (began, error) {
	out := began{At: map[string]int64{}, Cut: map[string]int64{}}
	var at fleet.Written
	text, err := os.ReadFile(filepath.Join(s.dir, string(job), cutLengths(from)))
	if err == nil {
		err = json.Unmarshal(text, &at)
	} else if errors.Is(err, fs.ErrNotExist) {
		at.Began, err = before.At, nil
	}
	if err != nil {
		return out, fmt.Errorf("reading how much output %s had at %s: %w", job, from, err)
	}
	for _, name := range []string{fleet.Stdout, fleet.Stderr} {
		st, err := s.stream(job, name)
		if err != nil {
			return out, err
		}
		st.mu.Lock()
		if err = st.findStored(); err == nil {
			if size, noted := at.Sizes[name]; noted && size < st.size {
				err = st.cutOff(max(size, 0))
			}
			out.Cut[name] = st.size
		}
		if err == nil {
			out.At[name] = at.Began[name]
			err = st.reopen()
		}
		st.mu.Unlock()
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

// cutOff removes what a stream has beyond a length. The caller holds the lock.
func (st *stream) cutOff(size int64) error {
	if err := os.Truncate(st.path, size); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cutting off output: %w", err)
	}
	st.all.giveBack(st.job, min(st.size, st.most)-min(size, st.most))
	st.size = size
	if st.agreed = min(st.agreed, size); st.copies != nil {
		st.copies.forget(st) // they are cut off with the next piece
	}
	st.changed()
	return nil
}

// reopen lets a stream that has ended go on. The caller holds the lock.
func (st *stream) reopen() error {
	err := os.Remove(st.path + endMark)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		st.eof, st.ended, st.agreedOver, err = false, false, false, nil
	}
	return err
}
