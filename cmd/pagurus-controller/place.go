package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"pagurus/act/backup"
	"pagurus/act/etcd"
	"pagurus/cmd/roles"
	"pagurus/fleet"
	"pagurus/internal/note"
)

// placing puts a verified backup in its place. What was there goes into a folder beside.
type placing struct {
	flags   roles.Controller
	staging string
	snap    fleet.Snapshot // of the store in staging
	parts   []backup.Part
	done    *restored
	times   int
	moved   [][2]string // from, to
}

// place moves the old state aside and the new one in. After an error the old state is where it
// was, unless the error says otherwise.
func (p *placing) place(ctx context.Context) (err error) {
	state := p.flags.StateDir
	if err := note.Replace(filepath.Join(state, timesFile), p.times); err != nil {
		return fmt.Errorf("restoring: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.undo())
		}
	}()
	for _, name := range append(stateFiles(), roles.RemovedFile) {
		if err := p.aside(filepath.Join(state, name), name); err != nil {
			return err
		}
	}
	if err := p.asideOutput(filepath.Join(state, "spool")); err != nil {
		return err
	}
	for _, name := range stateFiles() {
		if name == storeFolder && len(p.flags.Etcd) > 0 {
			continue
		}
		if err := p.move(filepath.Join(p.staging, name), filepath.Join(state, name)); err != nil {
			return err
		}
	}
	if err := syncFolder(state); err != nil {
		return fmt.Errorf("restoring: %w", err)
	}
	if len(p.flags.Etcd) > 0 { // last, since it cannot be undone by moving files
		if err := p.replace(ctx); err != nil {
			return err
		}
	}
	p.moved = nil // from here on nothing is undone: the state is whole
	return p.rest()
}

// rest places what a controller can do without.
func (p *placing) rest() error {
	missing, err := remember(p.flags.ImageDir, p.staging)
	p.done.ImagesMissing = missing
	if err == nil {
		err = p.config()
	}
	if err != nil {
		return fmt.Errorf("the cluster's state is restored in %s and can be used; the rest is not: %w", p.flags.StateDir, err)
	}
	return nil
}

// before is the folder of what was there, made when it is needed.
func (p *placing) before() (string, error) {
	if p.done.Before == "" {
		dir := filepath.Join(p.flags.StateDir, "before-restore-"+time.Now().UTC().Format("20060102-150405"))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return "", fmt.Errorf("restoring: %w", err)
		}
		p.done.Before = dir
	}
	return p.done.Before, nil
}

// aside moves a file or folder into the folder of what was there, if it exists.
func (p *placing) aside(from, name string) error {
	if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	dir, err := p.before()
	if err != nil {
		return err
	}
	to := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return fmt.Errorf("restoring: %w", err)
	}
	return p.move(from, to)
}

// asideOutput keeps the output of jobs that the backup does not know: a controller removes it.
// That of the others stays, since their programs go on writing where it ends.
func (p *placing) asideOutput(spool string) error {
	entries, err := os.ReadDir(spool)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("restoring: %w", err)
	}
	for _, e := range entries {
		if _, known := p.snap.Jobs[fleet.JobID(e.Name())]; known {
			continue
		}
		if err := p.aside(filepath.Join(spool, e.Name()), filepath.Join("spool", e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (p *placing) move(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return fmt.Errorf("restoring: %w", err)
	}
	p.moved = append(p.moved, [2]string{from, to})
	return nil
}

// undo moves everything back.
func (p *placing) undo() error {
	for i := len(p.moved) - 1; i >= 0; i-- {
		if err := os.Rename(p.moved[i][1], p.moved[i][0]); err != nil {
			return fmt.Errorf("the state before is in %s: move it back by hand: %w", p.done.Before, err)
		}
	}
	if p.done.Before != "" {
		_ = os.RemoveAll(filepath.Join(p.done.Before, "spool")) // empty folders
		_ = os.Remove(p.done.Before)
	}
	return nil
}

// replace puts the restored state into an external etcd, and keeps a copy of what it has.
func (p *placing) replace(ctx context.Context) (err error) {
	store, err := openStore(ctx, p.flags, etcd.Peer{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	empty, err := store.Empty(ctx)
	if err != nil {
		return err
	}
	if !empty {
		dir, err := p.before()
		if err != nil {
			return err
		}
		had, err := store.SnapshotFile(ctx, dir)
		if err != nil {
			return err
		}
		defer had.Close()
		kept, err := os.OpenFile(filepath.Join(dir, backup.StorePart), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(kept, had)
		if err = errors.Join(err, kept.Sync(), kept.Close()); err != nil {
			return fmt.Errorf("keeping what the store has: %w", err)
		}
	}
	return store.Replace(ctx, p.snap)
}

// config writes the files of the configuration that are missing. One that differs stays, since
// it may be of this machine, and the backup's is put beside it.
func (p *placing) config() error {
	for _, part := range p.parts {
		if !strings.HasPrefix(part.Name, backup.ConfigFolder+"/") || p.flags.Config == "" {
			continue
		}
		to := configFile(p.flags.Config, part.Name)
		content, err := os.ReadFile(filepath.Join(p.staging, filepath.FromSlash(part.Name)))
		if err != nil {
			return err
		}
		switch had, err := os.ReadFile(to); {
		case err == nil && bytes.Equal(had, content):
			continue
		case err == nil:
			p.done.Differs = append(p.done.Differs, to)
			to += ".restored"
		case errors.Is(err, fs.ErrNotExist):
			p.done.Config = append(p.done.Config, to)
		default:
			return err
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := note.WriteDurably(to, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// syncFolder makes the folder's entries survive a power loss.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
