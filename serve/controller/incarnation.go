package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"

	"pagurus/fleet"
	"pagurus/internal/note"
	"pagurus/serve/wire"
)

// This file binds a job's output to its incarnation. A job that begins again writes its streams
// from their beginning, and what it writes follows in the spool on what earlier ones wrote. What an
// earlier one still sends is refused: it comes from a guest that was replaced.

// beginnings is the file, beside a job's streams, with where its incarnation's output begins in them.
const beginnings = "incarnation"

type began struct {
	Incarnation int              `json:"incarnation"`
	At          map[string]int64 `json:"at"`            // by stream
	Cut         map[string]int64 `json:"cut,omitempty"` // where the streams ended then, if that is not where it begins
}

// followIncarnation makes a job's streams those of its present incarnation. One that begins at a checkpoint has them once it
// starts: which checkpoint it is can change before.
func (s *spool) followIncarnation(j fleet.Job) error {
	if j.From != "" && (j.State == fleet.JobPending || j.State == fleet.JobSuspended) {
		return nil
	}
	return s.beginIncarnation(j.ID, j.Incarnation, j.From)
}

// beginIncarnation makes a job's streams those of an incarnation, which begins at a checkpoint if one is named. Called again for the
// same it does nothing. After an error nothing is taken from the incarnation, because its streams do not know it.
func (s *spool) beginIncarnation(job fleet.JobID, incarnation int, from fleet.CheckpointID) error {
	if incarnation == 0 {
		return nil
	}
	var b began
	path := filepath.Join(s.dir, string(job), beginnings)
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &b)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("reading where the output of %s begins: %w", job, err)
	}
	if b.Incarnation != incarnation {
		if b, err = s.nextIncarnation(job, incarnation, from, b); err != nil {
			return fmt.Errorf("noting where the output of %s begins: %w", job, err)
		}
	}
	for _, name := range []string{fleet.Stdin, fleet.Stdout, fleet.Stderr} {
		st, err := s.stream(job, name)
		if err != nil {
			return err
		}
		st.mu.Lock()
		if st.incarnation != incarnation {
			text, err := json.Marshal(b)
			if err != nil {
				st.mu.Unlock()
				return err
			}
			st.incarnation, st.base, st.taken, st.begins = incarnation, b.At[name], 0, string(text)
			if st.copies != nil {
				st.copies.forget(st) // what others have is of an earlier one
			}
			st.changed()
		}
		st.mu.Unlock()
	}
	return nil
}

// nextIncarnation notes where a new incarnation's output begins: at the end of what there is, or where the incarnation began
// whose checkpoint it goes on from.
func (s *spool) nextIncarnation(job fleet.JobID, incarnation int, from fleet.CheckpointID, before began) (b began, err error) {
	if from != "" {
		b, err = s.rewind(job, from, before)
	} else {
		b, err = s.appendix(job)
	}
	if err != nil {
		return b, err
	}
	b.Incarnation = incarnation
	text, err := json.Marshal(b)
	if err == nil {
		err = os.MkdirAll(filepath.Join(s.dir, string(job)), 0o700)
	}
	if err == nil {
		err = note.Write(filepath.Join(s.dir, string(job), beginnings), text, 0o600)
	}
	return b, err
}

// appendix is where output begins that follows on what there is.
func (s *spool) appendix(job fleet.JobID) (began, error) {
	b := began{At: map[string]int64{}}
	for _, name := range []string{fleet.Stdout, fleet.Stderr} {
		st, err := s.stream(job, name)
		if err != nil {
			return b, err
		}
		st.mu.Lock()
		if err = st.findStored(); err == nil {
			b.At[name] = st.size
			err = st.reopen()
		}
		st.mu.Unlock()
		if err != nil {
			return b, err
		}
	}
	return b, nil
}

// current refuses what a host sends for an incarnation that is not the job's present one.
func current(j fleet.Job, at wire.Place) error {
	if at.Incarnation != j.Incarnation {
		return &wire.Error{Status: http.StatusGone, Reason: fmt.Sprintf("job %s has begun again since: this is its incarnation %d, and output of %d is not taken any more", j.ID, j.Incarnation, at.Incarnation)}
	}
	return nil
}

// deliverOutput adds what a host sends of an incarnation's stream, and returns the stream's end, both
// counted from the incarnation's beginning.
func (st *stream) deliverOutput(ctx context.Context, at wire.Place, data []byte, eof bool) (int64, error) {
	st.mu.Lock()
	base, is := st.base, st.incarnation
	st.mu.Unlock()
	if is != at.Incarnation {
		return 0, &wire.Error{Status: http.StatusServiceUnavailable, Reason: fmt.Sprintf("the controller does not know yet where the output of incarnation %d begins", at.Incarnation)}
	}
	end, err := st.write(base+at.Offset, data, eof)
	if err == nil {
		end, err = st.spread(ctx, end)
	}
	return max(end-base, 0), err
}
