package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"pagurus/act/cgroup"
	"pagurus/act/qemu"
)

var _ qemu.Cgroups = (*cgroup.Groups)(nil)

// groupFolder is where the kernel shows groups of processes; version 1 has a
// folder for each controller in it.
const groupFolder = "/sys/fs/cgroup"

// labGroup is above the groups of all lab hosts.
const labGroup = "pagurus-lab"

// removeGroups removes a group and all below it in every hierarchy. There is
// nothing in them any more.
func removeGroups(name string) error {
	roots, err := filepath.Glob(filepath.Join(groupFolder, "*", name))
	if err != nil {
		return err
	}
	var errs []error
	for _, root := range append(roots, filepath.Join(groupFolder, name)) {
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
