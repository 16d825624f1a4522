// Package image builds, keeps and provides the images that guests run: a read-only root
// file system, a kernel and its modules.
//
// An image is identified by the digest of its files, so that a host can check it alone.
// It must not know what runs in a guest, who asks for an image, or where guests are. Its
// tests use the real Debian archive (a small image without MPI), real file systems that
// are too small, and a fetch from another store; the pure parts run alone.
package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"pagurus/fleet"
	"pagurus/internal/note"
)

// The files of an image's folder. The digest is over the first three.
const (
	RootFile    = "root.img"     // squashfs, the guest's read-only root
	KernelFile  = "vmlinuz"      // what QEMU's -kernel takes
	ModulesFile = "modules.cpio" // newc, the modules as plain .ko and OrderFile
	LabelFile   = "image.json"   // fleet.Image
	keptFile    = "kept"         // of what a controller here has for hosts, though it did not build it; empty
)

// ErrUnknown: no image has the name. Find, Remove and ShellCommand wrap it.
var ErrUnknown = errors.New("no such image")

// ErrInUse: guests run the image. Remove wraps it.
var ErrInUse = errors.New("image is in use")

// Store is a folder of images:
//
//	blobs/DIGEST/   the files of an image, complete or missing
//	names/NAME.json the image of a name
//	building/       builds and fetches in progress, each locked by its process
//	shell/          always empty: ShellCommand's mount point, in its own namespace
//
// Any number of processes may use a store at once.
type Store struct {
	dir     string
	fetch   Fetch
	keeps   bool  // what it fetches is for hosts, too, and stays until Prune
	room    Room  // of what is fetched; nil: whatever fits on the disk
	reserve int64 // bytes of the disk that fetching leaves free
}

// Fetch writes one file of an image to w.
type Fetch func(ctx context.Context, digest fleet.Digest, file string, w io.Writer) error

// Open makes a store of the folder dir. It needs no closing.
func Open(dir string) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find the image folder: %w", err)
	}
	for _, d := range []string{"blobs", "names", "building", "shell"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, fmt.Errorf("make the image folder: %w", err)
		}
	}
	return &Store{dir: dir}, nil
}

// List returns the named images, by name.
func (s *Store) List() ([]fleet.Image, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, "names"))
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	var out []fleet.Image
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || checkName(name) != nil {
			continue
		}
		img, err := s.named(name)
		if errors.Is(err, ErrUnknown) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		out = append(out, img)
	}
	return out, nil
}

// Find returns the image of a name, whose files are here.
func (s *Store) Find(name string) (fleet.Image, error) {
	img, err := s.named(name)
	if err == nil && !s.Has(img.Digest) {
		err = fmt.Errorf("image %q: its files are gone from %s; `pagurus image build %s` builds it again", name, s.Folder(img.Digest), name)
	}
	return img, err
}

// named reads the image of a name.
func (s *Store) named(name string) (fleet.Image, error) {
	if err := checkName(name); err != nil {
		return fleet.Image{}, err
	}
	img, err := readLabel(s.namePath(name))
	if errors.Is(err, fs.ErrNotExist) {
		return fleet.Image{}, fmt.Errorf("image %q: %w; `pagurus image ls` lists the images, `pagurus image build %s` builds one", name, ErrUnknown, name)
	}
	if err != nil {
		return fleet.Image{}, fmt.Errorf("image %q: %w", name, err)
	}
	img.Name = name
	return img, nil
}

// Folder is the folder for the image's files, which may not exist.
func (s *Store) Folder(d fleet.Digest) string {
	return filepath.Join(s.dir, "blobs", filepath.Base(string(d)))
}

// Has reports whether the image's files are in the store.
func (s *Store) Has(d fleet.Digest) bool {
	if checkDigest(d) != nil {
		return false
	}
	_, err := os.Stat(filepath.Join(s.Folder(d), LabelFile))
	return err == nil
}

// Opened reports whether a process of this machine has a file of the image open, as the
// QEMU of every guest with it has. Only root sees all of them.
func (s *Store) Opened(d fleet.Digest) bool {
	below := s.Folder(d) + "/"
	files, err := filepath.Glob("/proc/[0-9]*/fd/*")
	return err == nil && slices.ContainsFunc(files, func(f string) bool {
		to, err := os.Readlink(f)
		return err == nil && strings.HasPrefix(to, below)
	})
}

// Remove removes the name, and the image's files if it was their last name. inUse says
// whether a guest runs an image or is about to; then nothing is removed. After an error
// the name still exists.
func (s *Store) Remove(name string, inUse func(fleet.Digest) bool) error {
	img, err := s.Find(name)
	if err != nil {
		return err
	}
	if inUse(img.Digest) {
		return fmt.Errorf("image %q: %w: wait for its jobs to end or cancel them, then remove it", name, ErrInUse)
	}
	if err := os.Remove(s.namePath(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("image %q: %w", name, err)
	}
	return s.Prune(inUse)
}

// Prune deletes all images without a name that are not in use: older builds of the same
// name.
func (s *Store) Prune(inUse func(fleet.Digest) bool) error {
	return s.exclusively(func() error {
		named, err := s.List()
		if err != nil {
			return err
		}
		entries, err := os.ReadDir(filepath.Join(s.dir, "blobs"))
		if err != nil {
			return fmt.Errorf("list image files: %w", err)
		}
		for _, e := range entries {
			d := fleet.Digest(e.Name())
			has := func(i fleet.Image) bool { return i.Digest == d }
			if checkDigest(d) != nil || slices.ContainsFunc(named, has) || inUse(d) {
				continue
			}
			if err := s.discard(d); err != nil {
				return fmt.Errorf("delete image files: %w", err)
			}
		}
		return nil
	})
}

// discard moves the folder away atomically, then deletes it, so that no process sees half
// of it.
func (s *Store) discard(d fleet.Digest) error {
	w, err := s.workplace("rm-"+string(d), nil)
	if err != nil {
		return err
	}
	err = os.Rename(s.Folder(d), filepath.Join(w.dir, "gone"))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, w.close())
}

// publish moves a complete folder to its place and gives it its name, if any, where there is room. If two
// publish the same image, the first wins: the contents are equal. After an error the name
// is unchanged.
func (s *Store) publish(folder string, img fleet.Image, room Room) error {
	if err := writeLabel(filepath.Join(folder, LabelFile), img); err != nil {
		return err
	}
	if err := os.Chmod(folder, 0o755); err != nil {
		return err
	}
	if err := syncFolder(folder); err != nil {
		return err
	}
	// Prune must not run in between: it would remove a folder without a name.
	return s.exclusively(func() error {
		if err := s.roomFor(img, room); err != nil {
			return err
		}
		err := os.Rename(folder, s.Folder(img.Digest))
		if err != nil && !s.Has(img.Digest) {
			return err
		}
		if err := syncFolder(filepath.Join(s.dir, "blobs")); err != nil || img.Name == "" {
			return err
		}
		return s.rename(img)
	})
}

// roomFor says why there is no room for an image; nil: there is. Between it and a change only what is in exclusively is sure.
func (s *Store) roomFor(img fleet.Image, room Room) error {
	if room == nil {
		return nil
	}
	there, err := s.List()
	if err == nil {
		err = room(there, img)
	}
	return err
}

// rename makes img.Name refer to img. Call it only in exclusively.
func (s *Store) rename(img fleet.Image) error {
	if err := markKept(s.Folder(img.Digest)); err != nil && !errors.Is(err, fs.ErrNotExist) { // Remember: the files may be gone
		return err
	}
	if err := writeLabel(s.namePath(img.Name), img); err != nil {
		return err
	}
	return syncFolder(filepath.Join(s.dir, "names"))
}

// Remember gives an image its name, unless the name is taken. missing: the name's files are not
// here.
func (s *Store) Remember(img fleet.Image) (missing bool, err error) {
	if err := errors.Join(checkName(img.Name), checkDigest(img.Digest)); err != nil {
		return false, err
	}
	err = s.exclusively(func() error {
		if there, err := s.named(img.Name); err == nil || !errors.Is(err, ErrUnknown) {
			img = there
			return err
		}
		return s.rename(img)
	})
	return err == nil && !s.Has(img.Digest), err
}

// Supersede gives an image its name, in the place of one that was built before it, which is replaced then. One that was built later,
// or is the same, keeps the name.
func (s *Store) Supersede(img fleet.Image) (replaced bool, err error) {
	if err := errors.Join(checkName(img.Name), checkDigest(img.Digest)); err != nil {
		return false, err
	}
	err = s.exclusively(func() error {
		there, err := s.named(img.Name)
		switch {
		case errors.Is(err, ErrUnknown):
			return s.rename(img)
		case err != nil || there.Digest == img.Digest || !there.Built.Before(img.Built):
			return err
		}
		replaced = true
		return s.rename(img)
	})
	return replaced && err == nil, err
}

func (s *Store) namePath(name string) string {
	return filepath.Join(s.dir, "names", name+".json")
}

func readLabel(path string) (fleet.Image, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return fleet.Image{}, err
	}
	var img fleet.Image
	if err := json.Unmarshal(b, &img); err != nil {
		return fleet.Image{}, fmt.Errorf("read %s: %w", path, err)
	}
	if err := checkDigest(img.Digest); err != nil {
		return fleet.Image{}, fmt.Errorf("read %s: %w", path, err)
	}
	return img, nil
}

func writeLabel(path string, img fleet.Image) error {
	b, err := json.MarshalIndent(img, "", "  ")
	if err != nil {
		return err
	}
	return note.WriteDurably(path, append(b, '\n'), 0o644)
}

// syncFolder makes the folder's entries survive a power loss.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

var (
	nameForm   = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)
	digestForm = regexp.MustCompile(`^sha256-[0-9a-f]{64}$`)
)

func checkName(name string) error {
	if !nameForm.MatchString(name) {
		return fmt.Errorf("%q is not a name for an image: use up to 63 small letters, digits, dots, dashes, starting with a letter or digit", name)
	}
	return nil
}

func checkDigest(d fleet.Digest) error {
	if !digestForm.MatchString(string(d)) {
		return fmt.Errorf("%q is not an image digest", string(d))
	}
	return nil
}
