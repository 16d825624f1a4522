package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// Files are the names of an image's files in order of fetching: small ones first, to
// detect a wrong image early.
func Files() []string { return []string{LabelFile, KernelFile, ModulesFile, RootFile} }

// FetchWith makes Ensure fetch missing files by fetch. Without it Ensure only finds
// existing ones.
func (s *Store) FetchWith(fetch Fetch) { s.fetch = fetch }

// FetchingWith is the same store, whose Ensure fetches by fetch what hosts need: it does not go like what a host has fetched for itself.
func (s *Store) FetchingWith(fetch Fetch) *Store {
	return &Store{dir: s.dir, fetch: fetch, keeps: true, room: s.room, reserve: s.reserve}
}

// FreeBytes is how much the disk has on which the images are.
func (s *Store) FreeBytes() (int64, error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(s.dir, &disk); err != nil {
		return 0, fmt.Errorf("checking the space left for images in %s: %w", s.dir, err)
	}
	return int64(disk.Bavail) * disk.Bsize, nil
}

// Ensure makes the image's files present and returns their folder. Fetched files are
// checked against the digest before they become visible. After an error nothing
// incomplete is left.
func (s *Store) Ensure(ctx context.Context, d fleet.Digest) (folder string, err error) {
	if err := checkDigest(d); err != nil {
		return "", err
	}
	if s.Has(d) {
		s.touch(d)
		return s.Folder(d), nil
	}
	if s.fetch == nil {
		return "", fmt.Errorf("image %s is not on this machine: build it again with `pagurus image build`", short(d))
	}
	w, err := s.workplace("fetch-"+string(d), patiently(ctx, func() {}))
	if err != nil {
		return "", fmt.Errorf("fetch image %s: %w", short(d), err)
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if s.Has(d) { // fetched meanwhile
		return s.Folder(d), nil
	}
	files := filepath.Join(w.dir, "files")
	if err := os.Mkdir(files, 0o755); err != nil {
		return "", fmt.Errorf("fetch image %s: %w", short(d), err)
	}
	for _, name := range Files() {
		if err := s.fetchFile(ctx, d, filepath.Join(files, name)); err != nil {
			return "", fmt.Errorf("fetch image %s: %s: %w", short(d), name, err)
		}
		if name != LabelFile {
			continue
		}
		if err := s.makeRoom(filepath.Join(files, name)); err != nil {
			return "", fmt.Errorf("fetch image %s: %w", short(d), err)
		}
	}
	img, err := checkFolder(files, d)
	if err != nil {
		return "", fmt.Errorf("fetch image %s: %w", short(d), err)
	}
	img.Name = "" // names belong to the building store; kept tells by it what was fetched
	if s.keeps {
		if err := markKept(files); err != nil {
			return "", fmt.Errorf("fetch image %s: %w", short(d), err)
		}
	}
	if err := s.publish(files, img, nil); err != nil {
		return "", fmt.Errorf("fetch image %s: %w", short(d), err)
	}
	return s.Folder(d), nil
}

func (s *Store) fetchFile(ctx context.Context, d fleet.Digest, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	err = s.fetch(ctx, d, filepath.Base(path), f)
	err = errors.Join(err, f.Sync(), f.Close())
	if errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("the disk that holds %s is full: make room, then start the job again", s.dir)
	}
	return err
}

// checkFolder reports whether the files in dir are the image d.
func checkFolder(dir string, d fleet.Digest) (fleet.Image, error) {
	img, err := readLabel(filepath.Join(dir, LabelFile))
	if err != nil {
		return fleet.Image{}, err
	}
	got, n, err := digestFolder(dir)
	if err != nil {
		return fleet.Image{}, err
	}
	if got != d || img.Digest != d {
		return fleet.Image{}, fmt.Errorf("the received file is another image or broken (%s)", short(got))
	}
	img.Bytes = n
	return img, nil
}

// short abbreviates a digest for people.
func short(d fleet.Digest) string { return string(d[:min(len(d), 19)]) }
