package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Sweep removes the groups that match a pattern and all below them in every hierarchy.
// They must be empty.
func Sweep(pattern string) error {
	var roots []string
	// Version 1 has a folder for each controller.
	for _, at := range []string{filepath.Join(mountPoint, "*", pattern), filepath.Join(mountPoint, pattern)} {
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
			return nil // removed meanwhile
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
