package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"pagurus/fleet"
)

// readOnly ends a directory that guests may only read.
const readOnly = ":ro"

// What access(2) asks for.
const (
	mayEnter = 1
	mayWrite = 2
	mayRead  = 4
)

// moreDirectories checks the directories that --files names: that they are there, and that the
// user may do there what the guests shall. fleet.JobSpec checks the rest.
func moreDirectories(given []string) (all []fleet.Directory, err error) {
	for _, name := range given {
		var d fleet.Directory
		path, only := strings.CutSuffix(name, readOnly)
		if d.ReadOnly = only; path == "" {
			return nil, fmt.Errorf("--"+fleet.FilesFlag+" %q names no directory: write DIR, or DIR%s to read only", name, readOnly)
		}
		if d.Path, err = resolved(path); err == nil {
			err = usableDirectory(d)
		}
		if err != nil {
			return nil, fmt.Errorf("--"+fleet.FilesFlag+" %s: %w", name, plainly(err))
		}
		all = append(all, d)
	}
	return all, nil
}

// usableDirectory says why guests cannot have a directory.
func usableDirectory(d fleet.Directory) error {
	info, err := os.Stat(d.Path)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return errors.New("it is not a directory")
	case !utf8.ValidString(d.Path):
		return errors.New("its name is not UTF-8, so guests cannot mount it: rename it")
	case slices.Contains(occupied, d.Path), slices.ContainsFunc(system, func(s string) bool { return d.Path == s || strings.HasPrefix(d.Path, s+"/") }):
		return errors.New("guests have their own: name another directory")
	case syscall.Access(d.Path, mayEnter|mayRead) != nil:
		return errors.New("you may not read it: ask its owner, or leave it out")
	case !d.ReadOnly && syscall.Access(d.Path, mayWrite) != nil:
		return fmt.Errorf("you may not write to it: write %s%s to read only", d.Path, readOnly)
	}
	return nil
}

// plainly is an error without the names of system calls.
func plainly(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("there is no such directory on this machine: make it, or name another")
	}
	if errors.Is(err, fs.ErrPermission) {
		return errors.New("you may not read it: ask its owner, or leave it out")
	}
	return err
}

// source says what a directory is, if hosts can share it; empty: they cannot, or it is not
// known.
func (a *app) source(path string) string {
	if a.Source == nil {
		return ""
	}
	return a.Source(path)
}

// clones reports whether files of all directories that a job may write to can be cloned.
func (a *app) clones(export string, more []fleet.Directory) bool {
	if a.Clones == nil || !a.Clones(export) {
		return false
	}
	return !slices.ContainsFunc(more, func(d fleet.Directory) bool { return !d.ReadOnly && !a.Clones(d.Path) })
}

func (a *app) sources(all []fleet.Directory) []fleet.Directory {
	for i := range all {
		all[i].Source = a.source(all[i].Path)
	}
	return all
}
