package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/pause"
)

// Progress gets the present step and the completed fraction, between 0 and 1, never
// falling.
type Progress func(step string, fraction float64)

// A build is one build in progress. Its folder is
//
//	root/    the guest's root, as mmdebstrap made it
//	kernel/  the kernel's package and what was in it
//	files/   what becomes the image's folder
type build struct {
	recipe   Recipe
	dir      string
	progress Progress

	base       fleet.Image // whose root it has; no digest: it makes its own
	baseFolder string      // its folder
}

// Build makes the image of the recipe and gives it its name. It reuses an image of the
// same recipe, unless the recipe says Fresh. Builds of the same recipe wait for each
// other. After an error or the end of ctx, nothing of the build is left and the name is
// unchanged.
func (s *Store) Build(ctx context.Context, r Recipe, progress Progress) (fleet.Image, error) {
	if progress == nil {
		progress = func(string, float64) {}
	}
	if r.Suite == "" {
		r.Suite = DefaultSuite
	}
	if err := r.check(); err != nil {
		return fleet.Image{}, err
	}
	if r.Own != nil {
		own, err := s.withModules(*r.Own)
		if err != nil {
			return fleet.Image{}, fmt.Errorf("build image %q: %w", r.Name, err)
		}
		r.Own = &own
	}
	if img, ok, err := s.cached(r, progress); ok || err != nil {
		return img, err
	}
	if err := ready(); err != nil {
		return fleet.Image{}, fmt.Errorf("build image %q: %w", r.Name, err)
	}
	if err := s.roomFor(fleet.Image{Name: r.Name, UID: r.UID}, r.Room); err != nil {
		return fleet.Image{}, fmt.Errorf("build image %q: %w", r.Name, err)
	}
	s.sweep()
	w, err := s.workplace(string(r.Digest()), patiently(ctx, func() { progress("waiting for another build of the same image", 0) }))
	if err != nil {
		return fleet.Image{}, fmt.Errorf("build image %q: %w", r.Name, err)
	}
	img, ok, err := s.cached(r, progress) // built meanwhile
	if !ok && err == nil {
		b := &build{recipe: r, dir: w.dir, progress: monotonic(progress)}
		if base, has := s.borrowed(r); has {
			b.base, b.baseFolder = base, s.Folder(base.Digest)
		}
		building, over := s.keepFree(ctx, r.Reserve)
		img, err = b.run(building)
		if full := context.Cause(building); err != nil && errors.Is(full, unix.ENOSPC) {
			err = full
		}
		over()
		if err == nil {
			err = s.publish(filepath.Join(w.dir, "files"), img, r.Room)
		}
		err = s.explain(ctx, r, err)
	}
	if err2 := w.close(); err == nil && err2 != nil {
		err = fmt.Errorf("clean up after building image %q: %w", r.Name, err2)
	}
	if err != nil {
		return fleet.Image{}, err
	}
	progress("ready", 1)
	return img, nil
}

// cached finds an image of the same recipe and gives it the recipe's name.
func (s *Store) cached(r Recipe, progress Progress) (fleet.Image, bool, error) {
	if r.Fresh {
		return fleet.Image{}, false, nil
	}
	all, err := s.List()
	if err != nil {
		return fleet.Image{}, false, err
	}
	for _, img := range all {
		if img.Recipe != r.Digest() {
			continue
		}
		img.Name, img.UID = r.Name, r.UID
		found := false
		err := s.exclusively(func() error {
			if found = s.Has(img.Digest); !found {
				return nil
			}
			if is, err := s.named(r.Name); err == nil && is.Digest == img.Digest {
				img = is // and counts for whom it did
				return nil
			}
			if err := s.roomFor(img, r.Room); err != nil {
				return err
			}
			return s.rename(img)
		})
		if err != nil {
			return fleet.Image{}, false, fmt.Errorf("name image %q: %w", r.Name, err)
		}
		if found {
			progress("cached", 1)
			return img, true, nil
		}
	}
	return fleet.Image{}, false, nil
}

// ready says which tools for a build are missing.
func ready() error {
	if os.Geteuid() != 0 {
		return errors.New("building an image needs root: run it with sudo")
	}
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("guests are amd64 machines, and this one is %s", runtime.GOARCH)
	}
	for tool, pkg := range map[string]string{
		"mmdebstrap": "mmdebstrap", "mksquashfs": "squashfs-tools", "unshare": "util-linux",
		"dpkg-deb": "dpkg", "xz": "xz-utils", "zstd": "zstd",
	} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%s is missing: apt-get install %s", tool, pkg)
		}
	}
	return nil
}

// run does the whole build. Afterwards the folder's files are complete except for
// LabelFile.
func (b *build) run(ctx context.Context) (fleet.Image, error) {
	for _, d := range []string{"root", "kernel", "files", "tmp"} {
		if err := os.Mkdir(b.path(d), 0o755); err != nil {
			return fleet.Image{}, err
		}
	}
	img := fleet.Image{
		Name: b.recipe.Name, Recipe: b.recipe.Digest(), Suite: b.recipe.Suite, Packages: b.recipe.Packages,
		Built: time.Now().UTC().Truncate(time.Second), UID: b.recipe.UID,
	}
	if own := b.recipe.Own; own != nil {
		img.OwnKernel, img.KernelWords = true, own.Words
	}
	if b.base.Digest != "" {
		return b.runBorrowing(img)
	}
	err := b.bootstrap(ctx)
	if err != nil {
		return fleet.Image{}, err
	}
	b.progress("unpacking the kernel", 0.75)
	if img.Kernel, err = b.kernel(ctx); err != nil {
		return fleet.Image{}, fmt.Errorf("kernel: %w", err)
	}
	img.MPI, img.Version = whichMPI(b.path("root"))
	if img.MPI != "" {
		b.progress("compiling the tracing library", 0.8)
		if err := b.compile(ctx); err != nil {
			return fleet.Image{}, err
		}
	}
	b.progress("tidying up", 0.83)
	if err := tidy(b.path("root")); err != nil {
		return fleet.Image{}, fmt.Errorf("tidy up the root: %w", err)
	}
	b.progress("packing the root", 0.84)
	if err := b.pack(ctx); err != nil {
		return fleet.Image{}, err
	}
	b.progress("hashing", 0.97)
	img.Digest, img.Bytes, err = digestFolder(b.path("files"))
	return img, err
}

func (b *build) path(parts ...string) string {
	return filepath.Join(append([]string{b.dir}, parts...)...)
}

// leastFree is the free space below which a disk counts as full.
const leastFree = 8 << 20

// lookEvery is how often a build looks how much of the disk is free.
const lookEvery = 500 * time.Millisecond

// keepFree is a context that ends when less than some bytes of the disk are free, with ENOSPC as its cause: what others write there must not
// wait for a build. over ends the looking.
func (s *Store) keepFree(ctx context.Context, reserve int64) (building context.Context, over func()) {
	building, cancel := context.WithCancelCause(ctx)
	if reserve > 0 {
		go func() {
			for building.Err() == nil {
				if free, err := s.FreeBytes(); err == nil && free < reserve {
					cancel(fmt.Errorf("%d MiB are kept free for others: %w", reserve>>20, unix.ENOSPC))
				}
				_ = pause.For(building, lookEvery)
			}
		}()
	}
	return building, func() { cancel(nil) }
}

// explain turns a build's error into a sentence that says what to do.
func (s *Store) explain(ctx context.Context, r Recipe, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("build image %q: %w", r.Name, context.Cause(ctx))
	}
	var fs unix.Statfs_t
	full := errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), "No space left on device")
	if unix.Statfs(s.dir, &fs) == nil {
		full = full || fs.Bavail*uint64(fs.Bsize) < leastFree
	}
	if full {
		kept := ""
		if r.Reserve > 0 {
			kept = fmt.Sprintf(", but for %d MiB that are kept free for others", r.Reserve>>20)
		}
		return fmt.Errorf("build image %q: the disk that holds %s is full%s: a build needs about 2 GB for a while, so make room or put the images elsewhere with --images", r.Name, s.dir, kept)
	}
	return fmt.Errorf("build image %q: %w", r.Name, err)
}

// monotonic keeps a progress from falling.
func monotonic(p Progress) Progress {
	top := 0.0
	return func(step string, fraction float64) {
		top = max(top, fraction)
		p(step, top)
	}
}
