// This file notes at a cut how long the job's files are that a guest with a kernel of its own has open for writing, and
// cuts them back before the guest is made from its checkpoint. The guest tells which they are, just before its cut. How
// long they are is found out when all guests are suspended, and from here: the guest's kernel writes again what the
// files lack. Of other kinds the driver does it.

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"pagurus/fleet"
	"pagurus/internal/note"
)

// JobFiles reaches the files of jobs from this host.
type JobFiles interface {
	// Open opens the directories of a guest's job, so that Measure is quick.
	Open(context.Context, fleet.Task) (OpenedFiles, error)
}

// OpenedFiles are the directories of a job, opened.
type OpenedFiles interface {
	// Measure notes how long files are. It returns at once, or when a file server has answered.
	Measure(fleet.OpenFiles) (CutFiles, error)
	// CutBack makes files as long as Measure has noted. After an error they are as they were, or some are so.
	CutBack(json.RawMessage) error
	// Close closes the directories.
	Close() error
}

// CutFiles is what Measure has noted.
type CutFiles struct {
	Files json.RawMessage `json:"files,omitempty"` // for CutBack
	Amiss []string        `json:"amiss,omitempty"` // what will not be as it was at the cut, for people
}

// lister is a guest agent that tells which files are open.
type lister interface {
	OpenFiles(context.Context) (fleet.OpenFiles, error)
}

const (
	cutFilesName = "files.json"    // in a checkpoint's folder, beside what the driver has written
	openLimit    = 5 * time.Second // for opening the directories, while the guest runs
	tellLimit    = 2 * time.Second // for a guest to tell, while it runs and others may be suspended
	measureLimit = 500 * time.Millisecond
)

// openFiles opens the directories of a guest that mounts them itself. A checkpoint is made without, and says so.
func (a *Agent) openFiles(ctx context.Context, w *taskRun, s *staged) {
	if !w.task.Guest.Kind.Traits().MountsFiles || w.task.Job.Spec.Export == "" {
		return
	}
	if a.Vaults.Files == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	opened, err := a.Vaults.Files.Open(ctx, w.task)
	if err != nil {
		s.Files = &CutFiles{Amiss: []string{fmt.Sprintf("host %s does not reach the job's files, which may keep what is written to them after the checkpoint: %v", a.Host, err)}}
		return
	}
	s.opened = opened
}

// listFiles asks a guest that is about to be cut which files are open.
func (a *Agent) listFiles(ctx context.Context, w *taskRun, s *staged) {
	if s.opened == nil || w.link == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, tellLimit)
	defer cancel()
	in, can := a.guestAgentOf(w.slot, w.link).(lister)
	if !can {
		return
	}
	open, err := in.OpenFiles(ctx)
	if err != nil && s.open != nil { // what it told when it was armed is better than nothing
		open = *s.open
	}
	if err != nil {
		open.Amiss = append(open.Amiss, fmt.Sprintf("the guest does not tell which files are open for writing (%v): they may keep what is written to them after the checkpoint", err))
	}
	s.open = &open
}

// measureFiles notes how long they are, when all guests are cut.
func (a *Agent) measureFiles(s *staged) {
	if s.opened == nil || s.open == nil {
		return
	}
	type measured struct {
		files CutFiles
		err   error
	}
	done := make(chan measured, 1)
	a.mu.Lock() // a guard may look at it
	opened, open := s.opened, *s.open
	s.opened = nil
	a.mu.Unlock()
	go func() { // a file server may not answer
		files, err := opened.Measure(open)
		done <- measured{files, errors.Join(err, opened.Close())}
	}()
	late := time.NewTimer(measureLimit)
	defer late.Stop()
	m := measured{err: fmt.Errorf("nothing came within %s", measureLimit)}
	select {
	case m = <-done:
	case <-late.C:
	}
	if m.err != nil {
		m.files = CutFiles{Amiss: append(open.Amiss, fmt.Sprintf("how long the job's files are could not be found out (%v): they may keep what is written to them after the checkpoint", m.err))}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s.Files = &m.files
}

// writeFiles puts what was noted beside what the driver has written.
func (a *Agent) writeFiles(g fleet.GuestID, s *staged) error {
	if s.Files == nil {
		return nil
	}
	for _, what := range s.Files.Amiss {
		a.Log.Warn("a checkpoint does not have all of a guest's files as they were", "guest", g, "what", what)
	}
	if err := note.Replace(filepath.Join(a.filesOf(g), cutFilesName), s.Files); err != nil {
		return fmt.Errorf("noting the files of guest %s: %w", g, err)
	}
	return nil
}

// cutFilesBack makes the job's files as long as a checkpoint's folder says. They are cut before the guest is made.
func (a *Agent) cutFilesBack(ctx context.Context, w *taskRun, folder string) error {
	text, err := os.ReadFile(filepath.Join(folder, cutFilesName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var noted CutFiles
	if err == nil {
		err = json.Unmarshal(text, &noted)
	}
	if err != nil || len(noted.Files) == 0 {
		return err
	}
	if a.Vaults.Files == nil {
		return fmt.Errorf("%s: this host does not reach the job's files", a.Host)
	}
	opened, err := a.Vaults.Files.Open(ctx, w.task)
	if err == nil {
		err = errors.Join(opened.CutBack(noted.Files), opened.Close())
	}
	return err
}

// closeFiles closes what a checkpoint under way has opened.
func (s *staged) closeFiles() {
	if s != nil && s.opened != nil {
		_ = s.opened.Close() // only directories
		s.opened = nil
	}
}
