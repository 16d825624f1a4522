package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

// findDirectories finds the job's directories and the links by which their names lead to them, and checks whether guests can have them.
func (f *runFlags) findDirectories() error {
	name, err := os.Getwd() // PWD, where that is true
	if err != nil {
		return fmt.Errorf("finding the current directory: %w", err)
	}
	if f.directory, f.links, err = resolved(name); err != nil {
		return fmt.Errorf("finding the current directory: %w", err)
	}
	given := slices.ContainsFunc(f.environment, func(v string) bool { return strings.HasPrefix(v, "PWD=") })
	if f.directory != name && !given {
		f.environment = append(f.environment, "PWD="+name)
	}
	f.exportDir = f.directory
	if f.export != "" {
		var links []fleet.Link
		if f.exportDir, links, err = resolved(f.export); err != nil {
			return fmt.Errorf("--"+fleet.ExportFlag+" %s: %w", f.export, plainly(err))
		}
		f.links = union(f.links, links)
	}
	if err := checkExport(f.exportDir, f.directory); err != nil {
		return err
	}
	directories, links, err := moreDirectories(f.files)
	f.directories, f.links = directories, union(f.links, links)
	return err
}

// resolved gives the directory that a name leads to, and the symbolic links on the way there, in the order in which they are followed.
func resolved(name string) (dir string, links []fleet.Link, err error) {
	name, err = filepath.Abs(name)
	if err != nil {
		return "", nil, err
	}
	dir = "/"
	for part := range strings.SplitSeq(strings.TrimPrefix(name, "/"), "/") {
		next := filepath.Join(dir, part)
		if dir, err = filepath.EvalSymlinks(next); err != nil {
			return "", nil, err
		}
		if dir != next {
			links = append(links, fleet.Link{Path: next, To: dir})
		}
	}
	return dir, links, nil
}

// union has all links once.
func union(links, more []fleet.Link) []fleet.Link {
	for _, l := range more {
		if !slices.Contains(links, l) {
			links = append(links, l)
		}
	}
	return links
}

var (
	// occupied are directories that each guest has itself; a job's files cannot be mounted
	// over them.
	occupied = []string{"/", "/tmp", "/var"}
	// system are directories that a guest needs itself, with everything below. A guest
	// refuses these only after it has started.
	system = []string{"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr"}
)

// checkExport checks whether guests can mount export and work in dir.
func checkExport(export, dir string) error {
	for _, path := range []string{export, dir} {
		if !utf8.ValidString(path) {
			return fmt.Errorf("the name of the directory %q is not UTF-8, so guests cannot mount it: rename it, or start the job in another one", path)
		}
	}
	below := func(parent string) bool { return strings.HasPrefix(export, parent+"/") }
	taken := slices.Contains(occupied, export) || slices.Contains(system, export) ||
		slices.ContainsFunc(system, below)
	if taken {
		return fmt.Errorf("%s cannot be shared with guests, because they have their own: go to your program's directory, or name one with --"+fleet.ExportFlag, export)
	}
	if dir != export && !strings.HasPrefix(dir, export+"/") {
		return fmt.Errorf("--"+fleet.ExportFlag+" %s does not contain the current directory %s", export, dir)
	}
	return nil
}

// moreDirectories checks the directories that --files names: that they are there, and that the
// user may do there what the guests shall. fleet.JobSpec checks the rest.
func moreDirectories(given []string) (all []fleet.Directory, links []fleet.Link, err error) {
	for _, name := range given {
		var d fleet.Directory
		path, only := strings.CutSuffix(name, readOnly)
		if d.ReadOnly = only; path == "" {
			return nil, nil, fmt.Errorf("--"+fleet.FilesFlag+" %q names no directory: write DIR, or DIR%s to read only", name, readOnly)
		}
		var on []fleet.Link
		if d.Path, on, err = resolved(path); err == nil {
			err = usableDirectory(d)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("--"+fleet.FilesFlag+" %s: %w", name, plainly(err))
		}
		all, links = append(all, d), union(links, on)
	}
	return all, links, nil
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
