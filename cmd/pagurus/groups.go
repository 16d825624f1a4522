package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"pagurus/act/cgroup"
	"pagurus/act/qemu"
	"pagurus/fleet"
	"pagurus/serve/agent"
	"pagurus/serve/lookout"
)

var (
	_ qemu.Cgroups   = (*cgroup.Groups)(nil)
	_ agent.Classes  = classes{}
	_ lookout.Guests = classes{}
)

// classes holds guests to their classes by their groups.
type classes struct {
	*cgroup.Groups
	cpus int // of the machine
}

// Class gives a guest what its class says. Of QEMU the threads that are the
// guest's CPUs have a slice: what serves it from beside them has to come at once.
func (c classes) Class(g fleet.Guest, class fleet.Class) error {
	which := func(thread string) bool { return strings.HasPrefix(thread, "CPU ") }
	if g.Kind != fleet.VM {
		which = nil
	}
	return c.Groups.Class(g.ID, g.Need.CPUs, class, which)
}

// Yield has all guests give way.
func (c classes) Yield(part float64, leaving bool) error {
	return c.Groups.Yield(part*float64(c.cpus), leaving)
}

// groupFolder is where the kernel shows groups of processes; version 1 has a
// folder for each controller in it.
const groupFolder = "/sys/fs/cgroup"

// hostGroup is the group of a host's guests. It has none above it: who shares
// the CPUs with whom is decided between siblings, and guests that give way to
// everybody on the machine have to be everybody's.
func hostGroup(host string) string { return "pagurus-" + host }

// labGroup is the same of a lab's host.
func labGroup(host fleet.HostID) string { return hostGroup("lab-" + string(host)) }

// removeGroups removes the groups that fit a pattern and all below them in every
// hierarchy. There is nothing in them any more.
func removeGroups(pattern string) error {
	var roots []string
	for _, at := range []string{filepath.Join(groupFolder, "*", pattern), filepath.Join(groupFolder, pattern)} {
		found, err := filepath.Glob(at)
		if err != nil {
			return err
		}
		roots = append(roots, found...)
	}
	var errs []error
	for _, root := range roots {
		var folders []string
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				folders = append(folders, path)
			}
			return nil // what vanishes meanwhile is what we want
		})
		slices.Reverse(folders) // the innermost first
		for _, f := range folders {
			if rerr := os.Remove(f); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
				err = errors.Join(err, rerr)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("removing the groups of processes in %s: %w", root, err))
		}
	}
	return errors.Join(errs...)
}
