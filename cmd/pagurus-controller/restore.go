package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pagurus/act/backup"
	"pagurus/act/daemon"
	"pagurus/act/etcd"
	"pagurus/act/image"
	"pagurus/cmd/roles"
	"pagurus/decide/planner"
	"pagurus/fleet"
	"pagurus/internal/note"
	"pagurus/serve/identity"
)

// printing is where a restore says what it does.
type printing struct{ out, err io.Writer }

// restored is what came of a restore, for people and programs.
type restored struct {
	Cluster       string        `json:"cluster"`
	Name          string        `json:"name,omitempty"`
	Backup        time.Time     `json:"backup"`
	Version       string        `json:"version"` // that made the backup
	State         string        `json:"state"`
	Before        string        `json:"before,omitempty"`         // the folder of what was there before
	Jobs          []fleet.JobID `json:"jobs,omitempty"`           // that had not ended
	ImagesMissing []string      `json:"images_missing,omitempty"` // whose files are not here
	Config        []string      `json:"config,omitempty"`         // files that were written
	Differs       []string      `json:"differs,omitempty"`        // files that stayed, beside FILE.restored
}

// timesFile counts the restores of a state folder: the same backup may be restored twice, and
// names that were given in between must not be given again.
const timesFile = "restored.json"

// restore puts a backup in the place of the controller's state. Before it is wholly verified, and
// its store was opened once, nothing of the old state is touched.
func restore(ctx context.Context, f roles.Controller, o roles.Restore, to printing) (err error) {
	if o.Check {
		return check(o, to)
	}
	if err := os.MkdirAll(f.StateDir, 0o755); err != nil {
		return fmt.Errorf("restoring: %w", err)
	}
	free, err := alone(f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, free()) }()
	there, err := occupied(ctx, f)
	if err != nil {
		return err
	}
	if len(there) > 0 && !o.Force {
		return fmt.Errorf("a cluster's state is here already (%s): `pagurus restore --force %s` restores over it, and keeps it beside", strings.Join(there, ", "), o.File)
	}
	staging, err := os.MkdirTemp(f.StateDir, "restoring-")
	if err != nil {
		return fmt.Errorf("restoring: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(staging)) }()
	m, err := backup.ReadFile(o.File, staging, to.progress())
	if err != nil {
		return err
	}
	if _, err := identity.OpenAuthority(staging); err != nil {
		return fmt.Errorf("%s has no authority that can be used: %w", o.File, err)
	}
	times := 0
	_ = note.Load(filepath.Join(f.StateDir, timesFile), &times) // none: it is the first time
	snap, err := openCopy(ctx, staging, m, times+1)
	if err != nil {
		return fmt.Errorf("%s: %w", o.File, err)
	}
	done := restored{Cluster: m.Cluster, Name: m.Name, Backup: m.At, Version: m.Version, State: f.StateDir, Jobs: unended(snap)}
	p := &placing{flags: f, staging: staging, snap: snap, parts: m.Parts, done: &done, times: times + 1}
	if err := p.place(ctx); err != nil {
		return err
	}
	return to.report(done, m.State, o.AsJSON)
}

// check reads and verifies a backup.
func check(o roles.Restore, to printing) error {
	m, err := backup.ReadFile(o.File, "", to.progress())
	if err != nil {
		return err
	}
	if o.AsJSON {
		return json.NewEncoder(to.out).Encode(m)
	}
	_, err = fmt.Fprintf(to.out, "%s is whole: cluster %s, %s, by pagurus %s, %d files of %d bytes\n", o.File, called(m.Name, m.Cluster), m.At.UTC().Format(time.DateTime+" UTC"), m.Version, len(m.Parts), m.Bytes())
	return err
}

func called(name, id string) string { return strings.TrimSpace(name + " (" + id + ")") }

// alone keeps controllers from this state until free is called, and refuses while one runs.
func alone(f roles.Controller) (free func() error, err error) {
	running := fmt.Errorf("a controller runs with %s: stop it by `systemctl stop %s`, or end its process, and restore again; jobs run on meanwhile", f.StateDir, roles.ControllerProgram)
	lock, err := daemon.HoldLock(roles.Lock(f.Socket), "a restore")
	if errors.As(err, new(daemon.Held)) {
		return nil, running
	}
	if err != nil {
		return nil, err
	}
	held, err := etcd.Held(filepath.Join(f.StateDir, storeFolder))
	if held {
		err = running
	}
	if err != nil {
		return nil, errors.Join(err, lock.Release())
	}
	return lock.Release, nil
}

// storeFolder is the embedded store's, in the state folder.
const storeFolder = "etcd"

// stateFiles are what a backup replaces in the state folder.
func stateFiles() []string {
	return []string{storeFolder, identity.AuthorityKeyFile, identity.AuthorityFile}
}

// occupied says which parts of a controller's state are here.
func occupied(ctx context.Context, f roles.Controller) (there []string, err error) {
	for _, name := range stateFiles() {
		path := filepath.Join(f.StateDir, name)
		if _, err := os.Lstat(path); err == nil {
			there = append(there, path)
		}
	}
	if len(f.Etcd) == 0 {
		return there, nil
	}
	store, err := openStore(ctx, f, etcd.Peer{})
	if err != nil {
		return nil, err
	}
	empty, err := store.Empty(ctx)
	if !empty {
		there = append(there, "etcd at "+strings.Join(f.Etcd, ","))
	}
	return there, errors.Join(err, store.Close())
}

// mostChanged bounds the guests in one change: a store takes no larger one.
const mostChanged = 5000

// openCopy makes a store of the copy in a backup, and readies it: see planner.Restore.
func openCopy(ctx context.Context, staging string, m backup.Manifest, times int) (snap fleet.Snapshot, err error) {
	dir, file := filepath.Join(staging, storeFolder), filepath.Join(staging, backup.StorePart)
	if err := etcd.RestoreSnapshot(file, dir); err != nil {
		return snap, err
	}
	if err := os.Remove(file); err != nil {
		return snap, err
	}
	store, err := etcd.Embed(ctx, etcd.EmbedConfig{Dir: dir})
	if err != nil {
		return snap, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if snap, err = store.Load(ctx); err != nil {
		return snap, err
	}
	if snap.Cluster.ID != m.Cluster {
		return snap, fmt.Errorf("it was altered: its store is of cluster %s, not %s; use another copy", snap.Cluster.ID, m.Cluster)
	}
	change := (&planner.Planner{}).Restore(snap, m.At, time.Now().UTC().Round(0), times)
	for guests := range slices.Chunk(change.Guests, mostChanged) {
		part := fleet.Changeset{Guests: guests}
		at, err := store.Commit(ctx, snap.Revision, part)
		if err != nil {
			return snap, err
		}
		snap = snap.Apply(part, at)
	}
	change.Guests = nil
	at, err := store.Commit(ctx, snap.Revision, change)
	if err != nil {
		return snap, err
	}
	return snap.Apply(change, at), nil
}

// unended are the jobs whose guests are sought.
func unended(s fleet.Snapshot) (jobs []fleet.JobID) {
	for _, j := range s.Jobs {
		if j.State != fleet.JobEnded {
			jobs = append(jobs, j.ID)
		}
	}
	slices.SortFunc(jobs, func(a, b fleet.JobID) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	return jobs
}

// progress says how far reading is, if it takes long.
func (p printing) progress() func(done, all int64) {
	told := time.Now()
	return func(done, all int64) {
		if time.Since(told) > 2*time.Second {
			told = time.Now()
			_, _ = fmt.Fprintf(p.err, "pagurus: read %d of %d MiB\n", done>>20, all>>20)
		}
	}
}

// report says what was done and what is to be done now.
func (p printing) report(r restored, was string, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(p.out).Encode(r)
	}
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	say("restored cluster %s in %s from a backup of %s", called(r.Name, r.Cluster), r.State, r.Backup.UTC().Format(time.DateTime+" UTC"))
	if r.Before != "" {
		say("what was there before is in %s", r.Before)
	}
	if was != r.State {
		say("the backup is of a controller with --state %s: start this one with --state %s", was, r.State)
	}
	for _, file := range r.Config {
		say("wrote %s", file)
	}
	for _, file := range r.Differs {
		say("kept %s as it is; the backup's is %s.restored", file, file)
	}
	if len(r.Jobs) > 0 {
		say("jobs that had not ended: %s; each goes on where a host says that it runs the guests, and is not started again", joined(r.Jobs))
	}
	for _, name := range r.ImagesMissing {
		say("the files of image %s are not here: `sudo pagurus image build %s` builds them again", name, name)
	}
	say("join tokens of the backup count no more: `pagurus token create` makes new ones")
	say("now start the controller, and this machine's agent, which serves the files of jobs that are submitted here: `systemctl enable --now %s %s`, or `pagurus controller` and `pagurus agent`", roles.ControllerProgram, roles.AgentProgram)
	say("if the head's address has changed, start each agent with --controller ADDRESS:PORT once more, or set it in its configuration; certificates stay valid")
	_, err := io.WriteString(p.out, b.String())
	return err
}

func joined(ids []fleet.JobID) string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = string(id)
	}
	return strings.Join(out, ", ")
}

// remember gives this machine the names of the backup's images, and returns those without files.
func remember(dir, staging string) (missing []string, err error) {
	labels, err := filepath.Glob(filepath.Join(staging, backup.ImagesFolder, "*.json"))
	if err != nil || len(labels) == 0 {
		return nil, err
	}
	images, err := image.Open(dir)
	if err != nil {
		return nil, err
	}
	for _, label := range labels {
		var img fleet.Image
		if err := note.Load(label, &img); err != nil {
			return nil, fmt.Errorf("reading the label of an image: %w", err)
		}
		lacks, err := images.Remember(img)
		if err != nil {
			return nil, fmt.Errorf("naming image %s: %w", img.Name, err)
		}
		if lacks {
			missing = append(missing, img.Name)
		}
	}
	return missing, nil
}
