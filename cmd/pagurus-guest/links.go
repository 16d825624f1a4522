package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"pagurus/fleet"
)

// rooms are directories that programs write to, or that the image fills: no link takes their place.
var rooms = []string{"/", "/tmp", "/var", "/var/tmp", "/root"}

// link makes the links by which the job's directories have the names that their user has for them. What cannot be made is left
// out: the directories are at their own paths, too. It is done once, before there are programs, which could lead it elsewhere.
func (m *member) link(s fleet.Setup) {
	if m.linked {
		return
	}
	m.linked = true
	for _, l := range s.Links {
		covered := func(dir string) bool { return within(l.Path, dir) }
		shared := func(d fleet.Directory) bool { return covered(d.Path) } // there its user has made it
		if slices.ContainsFunc(directories(s), shared) {
			continue
		}
		err := errors.New("programs need what is there")
		if !slices.Contains(rooms, l.Path) && !slices.ContainsFunc(keepClear, covered) {
			err = m.linkOne(l)
		}
		if err != nil {
			m.unlinked = true
			say("the link %s to %s is not made: %v", l.Path, l.To, err)
		}
	}
}

// linkOne makes a link where there is nothing, or an empty directory, as /home is in images.
func (m *member) linkOne(l fleet.Link) error {
	at := filepath.Join(m.root, l.Path)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	err := os.Symlink(l.To, at)
	if errors.Is(err, fs.ErrExist) {
		if to, rerr := os.Readlink(at); rerr == nil && to == l.To {
			return nil // the image's own
		}
		if st, serr := os.Lstat(at); serr == nil && st.IsDir() && os.Remove(at) == nil {
			err = os.Symlink(l.To, at)
		}
	}
	return err
}
