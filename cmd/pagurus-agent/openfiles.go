package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
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

// Open opens the directories of a guest's job.
func (f jobFiles) Open(ctx context.Context, t fleet.Task) (agent.OpenedFiles, error) {
	all, err := f.h.files(ctx, t)
	if err != nil {
		return nil, err
	}
	j := t.Job.Spec
	return openedFiles{
		all: all, lengths: t.Guest.Kind.Traits().MountsFiles,
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
	lengths bool // the files' lengths are noted, too; else the driver does it
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
	return written.Told(open).ReadyToClone(o.folders(), to)
}

// Measure notes how long files are, and clones those that may be written before their ends.
func (o openedFiles) Measure(open fleet.OpenFiles) (out agent.CutFiles, err error) {
	to := o.clones
	to.Until = time.Now().Add(cloneTime)
	c := written.Told(open)
	if o.lengths {
		c.Measure(o.folders())
	}
	c.Clone(o.folders(), to)
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

// Sync writes the clones to their disk.
func (o openedFiles) Sync(noted json.RawMessage) error {
	c, err := readCut(noted)
	if err == nil {
		err = c.SyncClones(o.folders(), o.clones.User)
	}
	return err
}

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

// Close closes the directories.
func (o openedFiles) Close() (err error) {
	for _, f := range o.all {
		err = errors.Join(err, f.Dir.Close())
	}
	return err
}
