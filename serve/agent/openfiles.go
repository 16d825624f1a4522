// This file notes at a cut what the job's files are like that a guest has open for writing, and puts them back before the
// guest is made from its checkpoint. Which they are a guest with a kernel of its own tells, just before its cut; of others
// the driver sees it. How long they are is found out when all guests are suspended, and from here: the guest's kernel
// writes again what the files lack. Then those that may be written before their ends are cloned, too, where their file
// system can do that.

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"pagurus/fleet"
	"pagurus/internal/note"
	"pagurus/internal/pause"
)

// JobFiles reaches the files of jobs from this host.
type JobFiles interface {
	// Open opens the directories of a guest's job, so that Measure is quick. ask may be nil.
	Open(ctx context.Context, t fleet.Task, ask AskFiles) (OpenedFiles, error)
	// Answer answers another host, which has asked in this way.
	Answer(context.Context, FileQuestion) ([]byte, error)
	// KeepClones removes the clones of a job's files that are not needed.
	KeepClones(context.Context, fleet.JobClones) error
}

// OpenedFiles are the directories of a job, opened.
type OpenedFiles interface {
	// Ready makes Measure quick, while guests run. It begins nothing more after a while.
	Ready(fleet.OpenFiles, time.Duration) error
	// HandOver has what a suspended guest has written come to whoever serves it, soon. It gives back what is open; what did not come
	// is not cloned.
	HandOver(fleet.OpenFiles) fleet.OpenFiles
	// Measure notes how long files are, and clones them. It returns soon, or when a file server has answered.
	Measure(fleet.OpenFiles) (CutFiles, error)
	// Sync writes the clones that Measure has noted to their disk.
	Sync(json.RawMessage) error
	// PutBack makes files as Measure has noted, and returns for people which clones are gone. After an error they are as
	// they were, or some are so.
	PutBack(json.RawMessage) (gone []string, err error)
	// Close closes the directories.
	Close() error
}

// CutFiles is what Measure has noted.
type CutFiles struct {
	Files  json.RawMessage `json:"files,omitempty"`  // for PutBack
	Clones int             `json:"clones,omitempty"` // how many of them have one
	Amiss  []string        `json:"amiss,omitempty"`  // what will not be as it was at the cut, for people
}

// lister is a guest agent that tells which files are open.
type lister interface {
	OpenFiles(context.Context) (fleet.OpenFiles, error)
}

// FileLister is a driver that sees which of their job's files its guests have open for writing.
type FileLister interface {
	OpenFiles(context.Context, fleet.GuestID) (fleet.OpenFiles, error)
}

const (
	cutFilesName = "files.json"    // in a checkpoint's folder, beside what the driver has written
	openLimit    = 5 * time.Second // for opening the directories, and again for writing what they have in memory only, while the guest runs
	tellLimit    = 2 * time.Second // for a guest to tell, while it runs and others may be suspended
	tellEvery    = 100 * time.Millisecond
	toldLately   = 500 * time.Millisecond // what a guest has told counts for so long
	measureLimit = 500 * time.Millisecond
)

// openFiles opens the directories of a guest's job. A checkpoint is made without, and says so.
func (a *Agent) openFiles(ctx context.Context, w *taskRun, s *staged) {
	_, sees := w.driver.(FileLister)
	if w.task.Job.Spec.Export == "" || !sees && !w.task.Guest.Kind.Traits().MountsFiles {
		return
	}
	if a.Vaults.Files == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	opened, err := a.openJobFiles(ctx, w)
	if err != nil {
		s.Files = &CutFiles{Amiss: []string{fmt.Sprintf("host %s does not reach the job's files, which may keep what is written to them after the checkpoint: %v", a.Host, err)}}
		return
	}
	s.opened = opened
}

// readyFiles makes measuring them quick. A file server that does not answer is not asked again.
func (a *Agent) readyFiles(w *taskRun, s *staged) {
	a.listFiles(w.ctx, w, s)
	a.seeFiles(w.ctx, w, s)
	if s.opened == nil {
		return
	}
	var open fleet.OpenFiles
	if s.open != nil {
		open = *s.open
	}
	done, opened := make(chan error, 1), s.opened
	go func() { done <- opened.Ready(open, openLimit) }()
	late := time.NewTimer(2 * openLimit)
	defer late.Stop()
	select {
	case err := <-done:
		if err != nil {
			a.Log.Warn("copying a job's files at a checkpoint may take longer, or fail", "guest", w.slot.guest, "cause", err)
		}
	case <-late.C:
		s.opened, s.Files = nil, &CutFiles{Amiss: append(open.Amiss, "the job's files do not answer: they may keep what is written to them after the checkpoint")}
		a.runs.Go(func() { <-done; _ = opened.Close() }) // only directories
	}
}

// listFiles asks a guest that is about to be cut which files are open, if it has not just told. One that takes long
// to answer would keep the others of its job suspended: so an armed guest is asked again and again, see keepListing.
func (a *Agent) listFiles(ctx context.Context, w *taskRun, s *staged) {
	a.mu.Lock()
	lately := time.Since(s.told) < toldLately
	a.mu.Unlock()
	if lately || !tells(w, s) {
		return
	}
	err := a.hearFiles(ctx, w, s)
	if err == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var open fleet.OpenFiles
	if s.open != nil { // what it told when it was armed is better than nothing
		open = *s.open
	}
	open.Amiss = append(slices.Clip(open.Amiss), fmt.Sprintf("the guest does not tell which files are open for writing (%v): they may keep what is written to them after the checkpoint", err))
	s.open = &open
}

// keepListing asks an armed guest which files are open until it is cut.
func (a *Agent) keepListing(w *taskRun, s *staged) {
	if !tells(w, s) {
		return
	}
	armedStill := func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return w.slot.staged == s && s.Stage == armed
	}
	a.runs.Go(func() {
		for pause.For(a.ctx, tellEvery) == nil && armedStill() {
			_ = a.hearFiles(a.ctx, w, s) // it is asked once more if it has not told lately
		}
	})
}

// tells reports whether a guest itself tells which files are open, and somebody wants to know.
func tells(w *taskRun, s *staged) bool {
	return s.opened != nil && w.link != nil && w.task.Guest.Kind.Traits().MountsFiles
}

// hearFiles has a guest tell which files are open. What it says after its cut does not count.
func (a *Agent) hearFiles(ctx context.Context, w *taskRun, s *staged) error {
	ctx, cancel := context.WithTimeout(ctx, tellLimit)
	defer cancel()
	in, can := a.guestAgentOf(w.slot, w.link).(lister)
	if !can {
		return nil
	}
	open, err := in.OpenFiles(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil && s.Stage == armed {
		s.open, s.told = &open, time.Now()
	}
	return err
}

// seeFiles has the driver see which files are open in a guest, which is cut, or will be.
func (a *Agent) seeFiles(ctx context.Context, w *taskRun, s *staged) {
	d, sees := w.driver.(FileLister)
	if !sees || w.task.Guest.Kind.Traits().MountsFiles || w.task.Job.Spec.Export == "" {
		return
	}
	open, err := d.OpenFiles(ctx, w.slot.guest)
	if err != nil { // the guest is gone, which others say
		return
	}
	a.mu.Lock() // a guard may look at it
	defer a.mu.Unlock()
	if s.open = &open; s.opened == nil && s.Files != nil {
		s.Files.Amiss = append(s.Files.Amiss, open.Amiss...)
	}
}

// handOver has what a guest, which is cut, has written come to whoever serves it: that is cloned when all guests are cut.
func (a *Agent) handOver(slot *guestSlot, s *staged) {
	a.mu.Lock() // a guard may look at it
	opened, open := s.opened, s.open
	s.opened = nil
	a.mu.Unlock()
	if opened == nil {
		return
	}
	if open != nil {
		now := opened.HandOver(*open)
		open = &now
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.opened, s.open = opened, open; slot.staged != s { // it was given up meanwhile
		s.closeFiles()
	}
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

// writeFiles puts what was noted beside what the driver has written, and the clones on their disk.
func (a *Agent) writeFiles(ctx context.Context, w *taskRun, s *staged) error {
	if s.Files == nil || len(s.Files.Files) == 0 && len(s.Files.Amiss) == 0 {
		return nil
	}
	for _, what := range s.Files.Amiss {
		a.Log.Warn("a checkpoint does not have all of a guest's files as they were", "guest", w.slot.guest, "what", what)
	}
	if err := note.Replace(filepath.Join(a.filesOf(w.slot.guest), cutFilesName), s.Files); err != nil {
		return fmt.Errorf("noting the files of guest %s: %w", w.slot.guest, err)
	}
	if s.Files.Clones == 0 {
		return nil
	}
	opened, err := a.openJobFiles(ctx, w)
	if err == nil {
		err = errors.Join(opened.Sync(s.Files.Files), opened.Close())
	}
	return err
}

// putFilesBack makes the job's files as a checkpoint's folder says, before the guest is made.
func (a *Agent) putFilesBack(ctx context.Context, w *taskRun, folder string) error {
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
	opened, err := a.openJobFiles(ctx, w)
	if err != nil {
		return err
	}
	gone, err := opened.PutBack(noted.Files)
	for _, what := range gone {
		a.Log.Warn("a guest goes on without a file as it was at its checkpoint", "guest", w.slot.guest, "what", what)
	}
	return errors.Join(err, opened.Close())
}

// keepClones removes the clones of jobs' files that the controller does not name, in the background. What cannot be removed
// is tried again when it names others.
func (a *Agent) keepClones() {
	if a.Vaults.Files == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clones.again = true
	if a.clones.running {
		return
	}
	a.clones.running = true
	a.runs.Go(func() {
		for a.keepClonesOnce() {
			continue
		}
	})
}

// keepClonesOnce reports whether it has to be called again.
func (a *Agent) keepClonesOnce() bool {
	a.mu.Lock()
	again := a.clones.again && a.ctx.Err() == nil
	a.clones.again, a.clones.running = false, again
	wanted := a.wanted.Clones
	a.mu.Unlock()
	if !again {
		return false
	}
	done := map[fleet.JobID]string{}
	for _, k := range wanted {
		is := fmt.Sprintf("%+v", k)
		if done[k.Job] = is; a.clones.done[k.Job] == is {
			continue
		}
		ctx, cancel := context.WithTimeout(a.ctx, openLimit)
		if err := a.Vaults.Files.KeepClones(ctx, k); err != nil {
			a.Log.Warn("copies of a job's files for its checkpoints stay", "job", k.Job, "cause", err)
		}
		cancel()
	}
	a.clones.done = done
	return true
}

// keptClones is what keepClones has done.
type keptClones struct {
	again, running bool
	done           map[fleet.JobID]string // only for the one that runs
}

// closeFiles closes what a checkpoint under way has opened.
func (s *staged) closeFiles() {
	if s != nil && s.opened != nil {
		_ = s.opened.Close() // only directories
		s.opened = nil
	}
}
