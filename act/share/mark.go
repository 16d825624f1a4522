package share

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"pagurus/fleet"
	"pagurus/internal/note"
)

// A mark says that a job's guests have handles that an earlier version gave out, without signatures. Guests on other
// hosts keep these while this host reboots, so marks are kept with its state.

func (s *Shares) marks() string {
	return filepath.Join(cmp.Or(s.config.State, s.config.Run), "unsigned-handles")
}

func (v *server) mark() error {
	err := os.MkdirAll(v.marks, 0o700)
	if err == nil {
		err = note.WriteDurably(filepath.Join(v.marks, string(v.job)), nil, 0o600)
	}
	if err != nil {
		return fmt.Errorf("remembering that its guests have handles without signatures: %w", err)
	}
	return nil
}

// unsigned reports whether there is a mark.
func (v *server) unsigned() bool {
	_, err := os.Stat(filepath.Join(v.marks, string(v.job)))
	return err == nil
}

// markedBefore reports whether an earlier version has made the mark, which it did in the server's folder.
func (v *server) markedBefore() bool {
	_, err := os.Stat(filepath.Join(v.folder, "unsigned"))
	return err == nil
}

func unmark(marks string, job fleet.JobID) error {
	if err := os.Remove(filepath.Join(marks, string(job))); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// forgetMarks removes those of jobs that have ended, some of them while this host was down.
func (s *Shares) forgetMarks(wanted map[fleet.JobID]fleet.Network) error {
	all, err := os.ReadDir(s.marks())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("looking for marks of jobs: %w", err)
	}
	var wrong []error
	for _, mark := range all {
		job := fleet.JobID(mark.Name())
		_, is := wanted[job]
		_, now := s.wantedNow(job)
		if !is && !now && s.servers[job] == nil {
			wrong = append(wrong, unmark(s.marks(), job))
		}
	}
	return errors.Join(wrong...)
}
