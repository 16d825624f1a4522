// This file keeps snapshots of freshly booted guests, from which guests of the same make
// start. The driver knows which guests are alike and when one has booted. The tests here
// are for the files; the driver's tests start real guests from them.

package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// snapshots is a folder of snapshots. Several agents may share it.
type snapshots struct {
	path string
	kept int
}

// openSnapshots returns the snapshots in a folder, which is made with the first one. It
// keeps at most kept snapshots.
func openSnapshots(path string, kept int) snapshots { return snapshots{path, kept} }

// Find opens a snapshot. It returns nil if there is none.
func (s snapshots) Find(name string) *os.File {
	f, err := os.Open(filepath.Join(s.path, name))
	if err != nil {
		return nil
	}
	now := time.Now()
	_ = os.Chtimes(f.Name(), now, now) // otherwise it counts as unused
	return f
}

// Remove removes a useless snapshot. It is not an error if there is none.
func (s snapshots) Remove(name string) error {
	if err := os.Remove(filepath.Join(s.path, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// draftPrefix begins the names of incomplete files. One that is not locked was left by an
// agent that died.
const draftPrefix = ".new-"

// snapshotDraft is an incomplete snapshot.
type snapshotDraft struct {
	*os.File
	snapshots snapshots
	name      string
}

// errSnapshotBusy: the snapshot exists, or another agent is making it.
var errSnapshotBusy = errors.New("the snapshot is made already")

// Draft begins a snapshot. The caller ends it by KeepSnapshot or Drop.
func (s snapshots) Draft(name string) (*snapshotDraft, error) {
	if err := os.MkdirAll(s.path, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(s.path, draftPrefix+name), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		// The former lock holder may have finished in between.
		if done := s.Find(name); done != nil {
			err = errors.Join(errSnapshotBusy, done.Close(), os.Remove(f.Name()))
		}
	} else if errors.Is(err, unix.EWOULDBLOCK) {
		err = errSnapshotBusy
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &snapshotDraft{File: f, snapshots: s, name: name}, nil
}

// KeepSnapshot makes the completed draft available. After an error it is removed.
func (d *snapshotDraft) KeepSnapshot() error {
	err := d.Sync() // otherwise the name without the content could survive a power loss
	if err == nil {
		err = os.Rename(d.Name(), filepath.Join(d.snapshots.path, d.name))
	}
	if err != nil {
		return errors.Join(err, d.Drop())
	}
	return errors.Join(d.Close(), d.snapshots.tidy())
}

// Drop removes the draft.
func (d *snapshotDraft) Drop() error { return errors.Join(os.Remove(d.Name()), d.Close()) }

// tidy keeps the most recently used snapshots.
func (s snapshots) tidy() error {
	entries, err := os.ReadDir(s.path)
	if err != nil {
		return err
	}
	used := map[string]time.Time{}
	var names []string
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || strings.HasPrefix(e.Name(), draftPrefix) {
			continue
		}
		names, used[e.Name()] = append(names, e.Name()), info.ModTime()
	}
	slices.SortFunc(names, func(a, b string) int { return used[b].Compare(used[a]) })
	for _, name := range names[min(s.kept, len(names)):] {
		err = errors.Join(err, s.Remove(name))
	}
	return err
}

// qmpDo sends a command to QEMU.
type qmpDo func(ctx context.Context, command string, args, out any) error

// socket, in QEMU's working directory, receives a guest that is saved.
const socket = "save.sock"

// connectLimit is the time for QEMU to connect to the socket on a busy host.
const connectLimit = 10 * time.Second

// often is the interval of queries to QEMU.
const often = 10 * time.Millisecond

// saveSnapshot suspends the guest of a QEMU whose working directory is dir, and writes it
// to out. gid is QEMU's group. The guest does not run on.
func saveSnapshot(ctx context.Context, do qmpDo, dir string, gid int, out io.Writer) error {
	listener, err := listenIn(dir, socket, gid)
	if err != nil {
		return err
	}
	defer listener.Close()
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	// Unlimited, because QEMU's default is meant for networks.
	err = do(ctx, "migrate-set-parameters", map[string]any{"max-bandwidth": int64(1) << 40}, nil)
	if err == nil {
		err = do(ctx, "stop", nil, nil)
	}
	if err == nil {
		err = do(ctx, "migrate", map[string]any{"uri": "unix:" + socket}, nil)
	}
	if err != nil {
		return err
	}
	// QEMU connects at once or never.
	if err := listener.SetDeadline(time.Now().Add(connectLimit)); err != nil {
		return err
	}
	conn, err := listener.Accept()
	if err != nil {
		return errors.Join(err, ctx.Err())
	}
	defer conn.Close()
	cut := context.AfterFunc(ctx, func() { conn.Close() })
	defer cut()
	if _, err := io.Copy(out, conn); err != nil {
		return errors.Join(err, ctx.Err())
	}
	return await(ctx, func() (bool, error) {
		state, err := snapshotMigration(ctx, do)
		return state == "completed", err
	})
}

// listenIn makes a socket for the unprivileged QEMU in its folder. gid is QEMU's group.
func listenIn(dir, name string, gid int) (*net.UnixListener, error) {
	folder, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	// Through /proc, since a socket address has at most 107 bytes.
	path := fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), name)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the path is invalid by then; the folder is removed with the guest
	if err := errors.Join(os.Chown(path, 0, gid), os.Chmod(path, 0o660)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// loadSnapshot loads a guest into a QEMU started with -incoming defer. fd is QEMU's
// descriptor of the snapshot. The guest stays suspended.
func loadSnapshot(ctx context.Context, do qmpDo, fd int) error {
	if err := do(ctx, "migrate-incoming", map[string]any{"uri": fmt.Sprintf("fd:%d", fd)}, nil); err != nil {
		return err
	}
	return await(ctx, func() (bool, error) {
		state, err := snapshotMigration(ctx, do)
		return state == "completed", err
	})
}

// snapshotMigration returns the state of QEMU's outgoing or incoming migration; a failed
// one is an error.
func snapshotMigration(ctx context.Context, do qmpDo) (string, error) {
	var m struct {
		Status string `json:"status"`
		Cause  string `json:"error-desc"`
	}
	if err := do(ctx, "query-migrate", nil, &m); err != nil {
		return "", err
	}
	if m.Status == "failed" {
		return "", fmt.Errorf("qemu cannot: %s", m.Cause)
	}
	return m.Status, nil
}

// await polls until a condition holds.
func await(ctx context.Context, so func() (bool, error)) error {
	for {
		if ok, err := so(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(often):
		}
	}
}

// waitBooted returns when a guest has opened the port of QEMU's character device.
func waitBooted(ctx context.Context, do qmpDo, chardev string) error {
	return await(ctx, func() (bool, error) {
		var all []struct {
			Label string `json:"label"`
			Open  bool   `json:"frontend-open"`
		}
		if err := do(ctx, "query-chardev", nil, &all); err != nil {
			return false, err
		}
		for _, c := range all {
			if c.Label == chardev {
				return c.Open, nil
			}
		}
		return false, fmt.Errorf("qemu has no character device %s", chardev)
	})
}
