package image

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"pagurus/fleet"
)

// This file keeps what a host has fetched within bounds. A machine may be a controller as well, in the same store: what was built here, had a name
// here, or was fetched for hosts counts there, and jobs on other hosts may need it when its name has gone to a later build.

// keepUsed is how long an image that was asked for stays, though no process has it open yet.
const keepUsed = 2 * time.Minute

// BoundFetched bounds what Ensure fetches: by room, and so that some bytes of the disk stay free for others. What nobody uses goes when there is no room,
// first of the user whose image it is, and of these the one that was used the longest ago.
func (s *Store) BoundFetched(room Room, reserve int64) { s.room, s.reserve = room, reserve }

// fetched is an image that this host has fetched for itself.
type fetched struct {
	fleet.Image // its Bytes include snapshots of booted guests
	used        time.Time
}

// touch notes that an image is used now.
func (s *Store) touch(d fleet.Digest) {
	now := time.Now()
	_ = os.Chtimes(s.Folder(d), now, now) // else it goes sooner
}

// markKept notes that an image is not only what this host has fetched for itself.
func markKept(folder string) error { return os.WriteFile(filepath.Join(folder, keptFile), nil, 0o644) }

// kept lists what this host has fetched for itself.
func (s *Store) kept() (out []fetched, err error) {
	named, err := s.List()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Join(s.dir, "blobs"))
	if err != nil {
		return nil, fmt.Errorf("list image files: %w", err)
	}
	for _, e := range entries {
		d := fleet.Digest(e.Name())
		info, err := e.Info()
		if err != nil || checkDigest(d) != nil || slices.ContainsFunc(named, func(i fleet.Image) bool { return i.Digest == d }) {
			continue
		}
		img, err := readLabel(filepath.Join(s.Folder(d), LabelFile))
		if err != nil {
			continue // it is being removed
		}
		if _, err := os.Stat(filepath.Join(s.Folder(d), keptFile)); err == nil || img.Name != "" {
			continue // img.Name: it was built here
		}
		img.Digest, img.Bytes = d, sizeOf(s.Folder(d))
		out = append(out, fetched{img, info.ModTime()})
	}
	return out, nil
}

// sizeOf is how much of the disk the files in a folder have.
func sizeOf(folder string) (bytes int64) {
	_ = filepath.WalkDir(folder, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil // files come and go
		}
		if info, err := e.Info(); err == nil {
			if at, is := info.Sys().(*syscall.Stat_t); is {
				bytes += at.Blocks * 512
			}
		}
		return nil
	})
	return bytes
}

// makeRoom makes room for an image with a label, or says why there is none.
func (s *Store) makeRoom(label string) error {
	img, err := readLabel(label)
	if err != nil || s.room == nil && s.reserve == 0 {
		return err
	}
	return s.exclusively(func() error {
		all, err := s.kept()
		if err != nil {
			return err
		}
		free, err := s.FreeBytes()
		if err != nil {
			return err
		}
		slices.SortFunc(all, func(a, b fetched) int {
			if mine := a.UID == img.UID; mine != (b.UID == img.UID) {
				if mine {
					return -1
				}
				return 1
			}
			return a.used.Compare(b.used)
		})
		why := s.lacks(all, img, free)
		var goes []fetched
		for _, one := range slices.Clone(all) {
			if why == nil {
				break
			}
			if time.Since(one.used) < keepUsed || s.Opened(one.Digest) || s.attached(one.Digest) {
				continue
			}
			goes, free = append(goes, one), free+one.Bytes
			all = slices.DeleteFunc(all, func(f fetched) bool { return f.Digest == one.Digest })
			why = s.lacks(all, img, free)
		}
		if why != nil {
			return why // nothing goes in vain
		}
		for _, one := range goes {
			if err := s.discard(one.Digest); err != nil {
				return fmt.Errorf("delete image files: %w", err)
			}
		}
		return nil
	})
}

// lacks says why there is no room for an image beside others; nil: there is.
func (s *Store) lacks(all []fetched, img fleet.Image, free int64) error {
	if more := img.Bytes + s.reserve - free; s.reserve > 0 && more > 0 {
		return fmt.Errorf("the disk that holds %s is full, but for %d MiB that are kept free for others, and the image needs %d MiB: make room for %d MiB there, then start the job again", s.dir, s.reserve>>20, img.Bytes>>20, more>>20+1)
	}
	if s.room == nil {
		return nil
	}
	var there []fleet.Image
	for _, one := range all {
		there = append(there, one.Image)
	}
	return s.room(there, img)
}

// attached reports whether a loop device of this machine has the image's root, as containers have it.
func (s *Store) attached(d fleet.Digest) bool {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	return err == nil && slices.ContainsFunc(files, func(f string) bool {
		at, err := os.ReadFile(f)
		return err == nil && strings.Contains(string(at), "/"+filepath.Base(string(d))+"/")
	})
}
