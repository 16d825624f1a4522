package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/container/criu"
	"pagurus/act/container/kernelstate"
	"pagurus/act/container/sandbox"
	"pagurus/act/container/transfer"
	"pagurus/act/host/written"
	"pagurus/fleet"
)

// Files is a directory of a job's files as this host has it.
type Files struct {
	Dir      *os.File
	At       string // its path in the guest
	ReadOnly bool
	Remote   bool   // it is of a network file system
	Identity string // what has it: hosts with the same identity know its files by the same handles and locks; empty: not known
}

// folder is such a directory in a guest's record.
type folder struct {
	At       string `json:"at"`
	From     string `json:"from"` // its path on this host
	ReadOnly bool   `json:"read_only,omitempty"`
	Remote   bool   `json:"remote,omitempty"`
	Identity string `json:"identity,omitempty"`
	Owner    uint32 `json:"owner,omitempty"` // the job's user
}

// openFiles opens the directories of a job's files. It returns none if guests see no files.
func (d *Driver) openFiles(ctx context.Context, t fleet.Task) ([]Files, error) {
	if d.config.Files == nil || t.Job.Spec.Export == "" {
		return nil, nil
	}
	for _, dir := range t.Job.Spec.Directories() {
		if err := sandbox.Showable(dir.Path); err != nil {
			return nil, err
		}
	}
	files, err := d.config.Files(ctx, t)
	if err != nil {
		return nil, fmt.Errorf("find the job's files: %w", err)
	}
	return files, nil
}

func closeFiles(files []Files) {
	for _, f := range files {
		f.Dir.Close()
	}
}

// folders are the directories in a guest's record, before they are mounted there.
func (d *Driver) folders(id fleet.GuestID, owner uint32, files []Files) (all []folder) {
	for i, f := range files {
		all = append(all, folder{At: f.At, From: d.filesDir(id, i), ReadOnly: f.ReadOnly, Remote: f.Remote, Identity: f.Identity, Owner: owner})
	}
	return all
}

// releaseFolders unmounts all directories of a job's files that a guest has.
func (d *Driver) releaseFolders(id fleet.GuestID) error {
	for i := range 1 + fleet.MostDirectories {
		if err := sandbox.ReleaseFiles(d.filesDir(id, i)); err != nil {
			return err
		}
	}
	return nil
}

// filesDir returns where a directory of a guest's job is mounted on this host, or for ""
// the folder that holds all of them. It is outside the guest's folder, because everything in
// that folder is removed with the guest.
func (d *Driver) filesDir(id fleet.GuestID, i int) string {
	name := string(id)
	if i > 0 {
		name += fmt.Sprintf("+%d", i)
	}
	return filepath.Join(d.config.Run, "container-files", name)
}

// identities tell a source how this host has the job's files.
func (r record) identities() (all []transfer.Folder) {
	for _, f := range r.Folders {
		all = append(all, transfer.Folder{At: f.At, Identity: f.Identity})
	}
	return all
}

// crosses lists the directories that a target reaches in another way. A target of an earlier
// Pagurus is on the same machine.
func (r record) crosses(target []transfer.Folder) (all []string) {
	for _, f := range r.Folders {
		same := slices.ContainsFunc(target, func(t transfer.Folder) bool { return t.At == f.At && t.Identity == f.Identity && t.Identity != "" })
		if !same && len(target) > 0 {
			all = append(all, f.At)
		}
	}
	return all
}

// paths are the directories' paths in the guest.
func (r record) paths() (all []string) {
	for _, f := range r.Folders {
		all = append(all, f.At)
	}
	return all
}

// jobFolders are the directories for CRIU.
func (r record) jobFolders() (all []criu.JobFolder) {
	var crosses []string
	if r.Copy != nil {
		crosses = r.Copy.Crosses
	}
	for _, f := range r.Folders {
		all = append(all, criu.JobFolder{At: f.At, Remote: f.Remote, Crosses: slices.Contains(crosses, f.At)})
	}
	return all
}

// writable are the directories in which a guest may have files open for writing.
func (r record) writable() (all []written.Folder) {
	for _, f := range r.Folders {
		all = append(all, written.Folder{At: f.At, From: f.From, ReadOnly: f.ReadOnly, Remote: f.Remote})
	}
	return all
}

// OpenFiles tells which of the job's files a guest has open for writing.
func (d *Driver) OpenFiles(_ context.Context, id fleet.GuestID) (fleet.OpenFiles, error) {
	g, err := d.here(id)
	if err != nil {
		return fleet.OpenFiles{}, fmt.Errorf("find the open files of guest %s: %w", id, err)
	}
	r := g.Remembered()
	var now written.Cut
	now.NoteFiles(r.Process.PID, r.writable())
	return now.Open(), nil
}

// sharedFolders are the directories that a target has in common with the source.
func (r record) sharedFolders() (all []criu.SharedFolder) {
	for _, f := range r.Folders {
		all = append(all, criu.SharedFolder{At: f.At, From: f.From, Remote: f.Remote, Owner: f.Owner})
	}
	return all
}

// fileState returns an error while a suspended guest has state of the job's files that its
// target cannot have.
func (r record) fileState() error {
	pid, below := r.Process.PID, r.paths()
	return errors.Join(kernelstate.Locks(pid, below...), kernelstate.Reading(pid, below...), kernelstate.Crossing(pid, r.Copy.Crosses...))
}

// writeLimit is how long a network file system may take to write what a guest's programs
// have written. A switch waits for it: what is not written when the guest runs at its target
// is not there.
const writeLimit = 10 * time.Second

// askFiles returns an error while the server of a guest's directories does not answer:
// whoever uses them would wait.
func (g *guest) askFiles(ctx context.Context, limit time.Duration) error {
	return g.useFiles(ctx, limit, func(folders []folder) error {
		for _, f := range folders {
			var st unix.Statx_t
			if err := unix.Statx(unix.AT_FDCWD, f.From, unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &st); err != nil {
				return fmt.Errorf("read the job's files in %s: %w", f.At, err)
			}
		}
		return nil
	})
}

// writeFiles makes the file systems of a guest's directories write all that its programs
// have written before the call.
func (g *guest) writeFiles(ctx context.Context, limit time.Duration) error {
	return g.useFiles(ctx, limit, writeAll)
}

// useFiles calls f with a guest's directories of network file systems. The kernel may keep
// its thread for as long as their server is away, so there is one at most: a call that finds
// one waits for its end, and then calls f.
func (g *guest) useFiles(ctx context.Context, limit time.Duration, f func([]folder) error) error {
	r := g.Remembered()
	remote := slices.DeleteFunc(slices.Clone(r.Folders), func(f folder) bool { return !f.Remote })
	if len(remote) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errors.New("their server does not answer; it goes on when it is back"))
	defer cancel()
	for {
		g.Mu.Lock()
		earlier := g.using
		mine := &using{done: make(chan struct{})}
		if earlier == nil {
			g.using = mine
		}
		g.Mu.Unlock()
		w := earlier
		if earlier == nil {
			w = mine
			go func() {
				mine.err = f(remote)
				g.Mu.Lock()
				g.using = nil
				g.Mu.Unlock()
				close(mine.done)
			}()
		}
		select {
		case <-w.done:
		case <-ctx.Done():
			return fmt.Errorf("use the job's files in %s: %w", remote[0].At, context.Cause(ctx))
		}
		if w == mine {
			return mine.err
		}
	}
}

// using is a call of useFiles under way.
type using struct {
	done chan struct{} // closed at its end
	err  error
}

func writeAll(folders []folder) error {
	for _, f := range folders {
		dir, err := os.Open(f.From)
		if err == nil {
			err = errors.Join(unix.Syncfs(int(dir.Fd())), dir.Close())
		}
		if err != nil {
			return fmt.Errorf("write the job's files in %s: %w", f.At, err)
		}
	}
	return nil
}

// forgetNames removes names that were kept for removed files. What has lost its name while it is
// open here is hidden by this kernel until it is closed.
func (r record) forgetNames(kept []criu.KeptName) error {
	var errs []error
	for _, k := range kept {
		for _, f := range r.Folders {
			if f.At == k.At {
				errs = append(errs, k.Forget(f.From))
			}
		}
	}
	return errors.Join(errs...)
}

// forgetKept removes the names that the source kept for a guest that has arrived.
func (d *Driver) forgetKept(g *guest) {
	r := g.Remembered()
	if !r.Arrived || len(r.Kept) == 0 {
		return
	}
	err := r.forgetNames(r.Kept)
	if err = errors.Join(err, g.Remember(func(r *record) { r.Kept = nil })); err != nil {
		d.config.Log.Warn("a guest that arrived leaves names in its files", "guest", g.ID, "cause", err)
	}
}
