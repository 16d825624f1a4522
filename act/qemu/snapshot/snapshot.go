// Package snapshot keeps guests as they were when they had just booted, so that
// others of the same make start from there. It knows neither what makes two
// guests alike nor when one has booted: the driver does. Its tests are of the
// files; that guests live on from them is shown by the driver's, in real QEMUs.
package snapshot

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

// Shelf is a folder of snapshots. Several agents may share one.
type Shelf struct {
	path string
	kept int
}

// Open gives the shelf in a folder, which is made when the first snapshot is,
// and keeps no more of them than said.
func Open(path string, kept int) Shelf { return Shelf{path, kept} }

// Find opens a snapshot; it is nil if there is none.
func (s Shelf) Find(name string) *os.File {
	f, err := os.Open(filepath.Join(s.path, name))
	if err != nil {
		return nil
	}
	now := time.Now()
	_ = os.Chtimes(f.Name(), now, now) // or it is taken for one that nobody uses
	return f
}

// Remove removes a snapshot that is of no use. One that is not there is no error.
func (s Shelf) Remove(name string) error {
	if err := os.Remove(filepath.Join(s.path, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// draftPrefix begins the names of files that are being written. One that nobody
// holds locked was left by an agent that died.
const draftPrefix = ".new-"

// Draft is a snapshot that is being made.
type Draft struct {
	*os.File
	shelf Shelf
	name  string
}

// ErrBusy: the snapshot is there, or somebody else is making it.
var ErrBusy = errors.New("the snapshot is made already")

// Draft begins a snapshot. End it with Keep or Drop.
func (s Shelf) Draft(name string) (*Draft, error) {
	if err := os.MkdirAll(s.path, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(s.path, draftPrefix+name), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		// Whoever held it may have finished between the two.
		if done := s.Find(name); done != nil {
			err = errors.Join(ErrBusy, done.Close(), os.Remove(f.Name()))
		}
	} else if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrBusy
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Draft{File: f, shelf: s, name: name}, nil
}

// Keep puts the draft, which is whole, on the shelf. After an error it is gone.
func (d *Draft) Keep() error {
	err := d.Sync() // a name without the content would outlive a loss of power
	if err == nil {
		err = os.Rename(d.Name(), filepath.Join(d.shelf.path, d.name))
	}
	if err != nil {
		return errors.Join(err, d.Drop())
	}
	return errors.Join(d.Close(), d.shelf.tidy())
}

// Drop gives the draft up.
func (d *Draft) Drop() error { return errors.Join(os.Remove(d.Name()), d.Close()) }

// tidy leaves those used last.
func (s Shelf) tidy() error {
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

// Do says something to QEMU.
type Do func(ctx context.Context, command string, args, out any) error

// socket is where QEMU sends a guest that is saved, in its working directory.
const socket = "save.sock"

// connectLimit is how long QEMU may take to reach the socket on a busy host.
const connectLimit = 10 * time.Second

// often is how long QEMU is left alone between two questions.
const often = 10 * time.Millisecond

// Save stops the guest of a QEMU that works in dir, as the group given, and
// writes it to out. The guest does not run on.
func Save(ctx context.Context, do Do, dir string, gid int, out io.Writer) error {
	listener, err := listen(dir, gid)
	if err != nil {
		return err
	}
	defer listener.Close()
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	// Without a bound, or QEMU keeps to one meant for networks.
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
	// QEMU connects at once, or never.
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
		state, err := migration(ctx, do)
		return state == "completed", err
	})
}

// listen makes the socket that QEMU, unprivileged, connects to.
func listen(dir string, gid int) (*net.UnixListener, error) {
	folder, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	// By way of /proc, since an address may have no more than 107 bytes.
	path := fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), socket)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the path is gone by then; the folder goes with the guest
	if err := errors.Join(os.Chown(path, 0, gid), os.Chmod(path, 0o660)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Load gives a QEMU that waits for a guest, stopped, the one that it has open
// for reading under a number. The guest does not run yet.
func Load(ctx context.Context, do Do, fd int) error {
	if err := do(ctx, "migrate-incoming", map[string]any{"uri": fmt.Sprintf("fd:%d", fd)}, nil); err != nil {
		return err
	}
	return await(ctx, func() (bool, error) {
		state, err := migration(ctx, do)
		return state == "completed", err
	})
}

// migration gives the state of what QEMU sends or takes in; that it failed is
// an error.
func migration(ctx context.Context, do Do) (string, error) {
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

// await asks until something is so.
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

// Booted returns when a guest has opened the port whose other end is a character
// device of QEMU's.
func Booted(ctx context.Context, do Do, chardev string) error {
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
