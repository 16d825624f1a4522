package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"pagurus/act/container"
	"pagurus/act/host/written"
	"pagurus/act/share"
	"pagurus/fleet"
	"pagurus/serve/agent"
)

// jobFiles satisfies agent.JobFiles.
type jobFiles struct{ h *host }

// cloneTime is how long a job's files may be cloned while it is suspended.
const cloneTime = 300 * time.Millisecond

// cloneLate is when what is not cloned by then is not waited for.
const cloneLate = 400 * time.Millisecond

// Open opens the directories of a guest's job.
func (f jobFiles) Open(ctx context.Context, t fleet.Task, ask agent.AskFiles) (agent.OpenedFiles, error) {
	all, err := f.h.files(ctx, t)
	if err != nil {
		return nil, err
	}
	j := t.Job.Spec
	return openedFiles{
		all: all, ask: ask, busy: &sync.WaitGroup{}, lengths: t.Guest.Kind.Traits().MountsFiles,
		clones: written.Clones{Of: fleet.ClonesOf(t.Order.Checkpoint, t.Job.Born), User: written.Owner{UID: j.UID, GID: j.GID, Groups: j.Groups}},
	}, nil
}

// KeepClones removes the clones of a job's files that are not needed.
func (jobFiles) KeepClones(ctx context.Context, k fleet.JobClones) (err error) {
	for _, d := range k.Share.Directories() {
		if d.ReadOnly {
			continue
		}
		dir, cannot := share.Enter(ctx, fleet.Share{Export: d.Path, UID: k.Share.UID, GID: k.Share.GID})
		if cannot != nil { // its user has removed it, or closed it to themselves
			continue
		}
		cannot = written.KeepClones(pathOf(dir), written.Owner{UID: k.Share.UID, GID: k.Share.GID, Groups: k.Groups}, k.Needs)
		err = errors.Join(err, cannot, dir.Close())
	}
	return err
}

// openedFiles are a job's directories as its guests' files are noted and put back in them.
type openedFiles struct {
	all     []container.Files
	clones  written.Clones
	lengths bool           // the files' lengths are noted, too; else the driver does it
	ask     agent.AskFiles // whoever serves files clones them; nil: nobody does
	busy    *sync.WaitGroup
}

// pathOf is a directory that is open, whatever its name leads to now.
func pathOf(dir *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", dir.Fd()) }

func (o openedFiles) folders() (all []written.Folder) {
	for _, f := range o.all {
		all = append(all, written.Folder{At: f.At, From: pathOf(f.Dir), ReadOnly: f.ReadOnly, Remote: f.Remote, Served: f.Identity == jobServer})
	}
	return all
}

// Ready makes what Measure does quick.
func (o openedFiles) Ready(open fleet.OpenFiles, limit time.Duration) error {
	to := o.clones
	to.Until = time.Now().Add(limit)
	c := written.Told(open)
	err := c.ReadyToClone(o.folders(), to)
	if _, cannot := o.askFor(c, askReady, limit); cannot != nil {
		err = errors.Join(err, cannot)
	}
	return err
}

// HandOver has what a suspended guest has written come to the host that serves it. A guest with a kernel of its own keeps what did not come,
// and writes it again.
func (o openedFiles) HandOver(open fleet.OpenFiles) fleet.OpenFiles {
	c := written.Told(open)
	if o.lengths || len(c.Served(o.folders())) == 0 {
		return open
	}
	done, until := make(chan written.Cut, 1), time.Now().Add(cloneTime)
	o.busy.Go(func() { // a file server may not answer
		c := written.Told(open)
		c.HandOver(o.folders(), until)
		done <- c
	})
	late := time.NewTimer(cloneLate)
	defer late.Stop()
	select {
	case c = <-done:
	case <-late.C:
		c.Withhold(o.folders(), fmt.Errorf("its server has not answered within %s", cloneLate))
	}
	return c.Open()
}

// Measure notes how long files are, and clones those that may be written before their ends.
func (o openedFiles) Measure(open fleet.OpenFiles) (out agent.CutFiles, err error) {
	to := o.clones
	to.Until = time.Now().Add(cloneTime)
	c := written.Told(open)
	if o.lengths {
		c.Measure(o.folders())
	}
	done := make(chan written.Cut, 1)
	o.busy.Go(func() { done <- o.clone(c, to) })
	late := time.NewTimer(cloneLate)
	defer late.Stop()
	select {
	case c = <-done:
	case <-late.C: // a disk that is slow; the lengths count
		c.Amiss = append(c.Amiss, fmt.Sprintf("the job's files could not be copied as they are at the checkpoint within %s", cloneLate))
	}
	var noted []written.File
	for _, f := range c.Files {
		if f.Clone != "" {
			out.Clones++
		}
		if f.Clone != "" || o.lengths {
			noted = append(noted, f)
		}
	}
	out.Amiss = c.Amiss
	if len(noted) > 0 {
		out.Files, err = json.Marshal(written.Cut{Files: noted})
	}
	return out, err
}

// clone clones what is noted, here and at the host that serves files.
func (o openedFiles) clone(c written.Cut, to written.Clones) written.Cut {
	c = written.Cut{Files: slices.Clone(c.Files), Amiss: slices.Clone(c.Amiss)}
	c.Clone(o.folders(), to)
	cloned, err := o.askFor(c, askClone, cloneLate)
	if err != nil {
		c.Amiss = append(c.Amiss, fmt.Sprintf("the job's files could not be copied as they are at the checkpoint: %v", err))
	}
	c.TakeClones(cloned)
	return c
}

// Sync writes the clones to their disk.
func (o openedFiles) Sync(noted json.RawMessage) error {
	c, err := readCut(noted)
	if err == nil {
		err = c.SyncClones(o.folders(), o.clones.User)
	}
	if err == nil {
		_, err = o.askFor(c, askSync, syncLimit)
	}
	return err
}

// What a host asks of the one that serves a job's files.
const (
	askReady = "ready"
	askClone = "clone"
	askSync  = "sync"
)

// syncLimit is for a disk that is busy.
const syncLimit = time.Minute

// fileQuestion is such a question.
type fileQuestion struct {
	Of    string         `json:"of"` // whose clones
	Files []written.File `json:"files"`
}

// askFor has the host that serves files do it with those that it serves.
func (o openedFiles) askFor(c written.Cut, what string, limit time.Duration) (cloned written.Cut, err error) {
	q := fileQuestion{Of: o.clones.Of, Files: c.Served(o.folders())}
	served := slices.ContainsFunc(o.all, func(f container.Files) bool { return f.Identity == jobServer })
	if o.ask == nil || !served || len(q.Files) == 0 && what != askReady {
		return cloned, nil
	}
	body, err := json.Marshal(q)
	if err != nil {
		return cloned, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	answer, err := o.ask(ctx, what, body)
	if err == nil {
		err = json.Unmarshal(answer, &cloned)
	}
	return cloned, err
}

// Answer does with files that this host serves what another one asks for.
func (f jobFiles) Answer(ctx context.Context, asked agent.FileQuestion) ([]byte, error) {
	var q fileQuestion
	if err := json.Unmarshal(asked.Body, &q); err != nil {
		return nil, fmt.Errorf("read which files are meant: %w", err)
	}
	if !fleet.IsClonesOf(q.Of, asked.Job) {
		return nil, fmt.Errorf("%q is no checkpoint of job %s", q.Of, asked.Job)
	}
	s := asked.Share
	o := openedFiles{clones: written.Clones{Of: q.Of, User: written.Owner{UID: s.UID, GID: s.GID}}}
	defer func() { _ = o.Close() }() // only directories
	for _, d := range s.Directories() {
		dir, err := share.Enter(ctx, fleet.Share{Export: d.Path, UID: s.UID, GID: s.GID})
		if err != nil {
			return nil, err
		}
		o.all = append(o.all, container.Files{At: d.Path, Dir: dir, ReadOnly: d.ReadOnly})
	}
	c := written.Cut{Files: q.Files}
	var err error
	switch asked.What {
	case askReady:
		o.clones.Until = time.Now().Add(readyTime)
		err = c.ReadyToClone(o.folders(), o.clones)
	case askClone:
		o.clones.Until = time.Now().Add(cloneTime)
		c.Clone(o.folders(), o.clones)
	case askSync:
		err = c.SyncClones(o.folders(), o.clones.User)
	default:
		err = fmt.Errorf("this version does not know %q", asked.What)
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(c)
}

// readyTime is how long another host's files may take to be written.
const readyTime = 5 * time.Second

// PutBack makes files as Measure has noted.
func (o openedFiles) PutBack(noted json.RawMessage) (gone []string, err error) {
	c, err := readCut(noted)
	if err != nil {
		return nil, err
	}
	return c.Back(o.folders(), o.clones.User)
}

func readCut(noted json.RawMessage) (c written.Cut, err error) {
	if err := json.Unmarshal(noted, &c); err != nil {
		return c, fmt.Errorf("reading which files a checkpoint has noted: %w", err)
	}
	return c, nil
}

// Close closes the directories, once nothing uses them. It does not wait long for that.
func (o openedFiles) Close() error {
	if o.busy == nil {
		return o.close()
	}
	closed := make(chan error, 1)
	go func() {
		o.busy.Wait()
		closed <- o.close()
	}()
	select {
	case err := <-closed:
		return err
	case <-time.After(10 * time.Millisecond):
		return nil
	}
}

func (o openedFiles) close() (err error) {
	for _, f := range o.all {
		err = errors.Join(err, f.Dir.Close())
	}
	return err
}
