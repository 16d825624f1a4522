package vault

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// Load writes the files of a part into an empty folder; 0 MostBytes is no limit. It tests the manifest against its digest, and
// every chunk. After an error the folder is empty again.
func Load(ctx context.Context, kept fleet.KeptPart, from Chunks, folder string) (err error) {
	p, want := kept.PartName, kept.Manifest
	if err := checkPart(p); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("load %s of checkpoint %s: %w", p.Guest, p.Checkpoint, err)
		}
	}()
	there, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	if len(there) > 0 {
		return fmt.Errorf("the folder %s is not empty", folder)
	}
	text, err := from.Manifest(ctx, p)
	if err != nil {
		return err
	}
	if got := DigestOf(text); got != want {
		return fmt.Errorf("%w: the manifest is %s, not %s", ErrDamaged, short(got), short(want))
	}
	m, err := ParseManifest(text)
	if err == nil {
		err = errors.Join(m.copyOf(p), m.within(kept.MostBytes))
	}
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer root.Close()
	defer func() {
		if err != nil {
			err = errors.Join(said(err, folder), empty(root, m))
		}
	}()
	for _, f := range m.Files {
		if err := loadFile(ctx, loading{p, from, root}, f); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	return nil
}

type loading struct {
	part Part
	from Chunks
	root *os.Root
}

// loadFile writes one file. Zeros are left out, so that a file with holes has them again.
func loadFile(ctx context.Context, l loading, f File) (err error) {
	switch {
	case f.Folder:
		return errors.Join(l.root.Mkdir(f.Path, 0o700), l.root.Chmod(f.Path, f.Mode|0o700)) // its files are yet to come
	case f.Link != "":
		return l.root.Symlink(f.Link, f.Path)
	}
	out, err := l.root.OpenFile(f.Path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if err := errors.Join(out.Truncate(f.Bytes), out.Chmod(f.Mode)); err != nil {
		return err
	}
	pool, within := errgroup.WithContext(ctx)
	pool.SetLimit(workers)
	at := int64(0)
	for _, c := range f.Chunks {
		if within.Err() != nil {
			break
		}
		offset := at
		at += c.Bytes
		pool.Go(func() error { return loadChunk(within, l, c, out, offset) })
	}
	if err := pool.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

func loadChunk(ctx context.Context, l loading, c Chunk, out *os.File, offset int64) error {
	packed, err := l.from.Chunk(ctx, l.part, c.Digest)
	if err != nil {
		return err
	}
	plain, err := unpack(c.Digest, packed)
	if err != nil {
		return err
	}
	if int64(len(plain)) != c.Bytes {
		return fmt.Errorf("%w: chunk %s has %d bytes, and the manifest says %d", ErrDamaged, short(c.Digest), len(plain), c.Bytes)
	}
	if zero(plain) {
		return nil
	}
	_, err = out.WriteAt(plain, offset)
	return err
}

// empty removes what Load wrote: the last first, which is in the folders before it.
func empty(root *os.Root, m Manifest) error {
	var errs []error
	for i := len(m.Files) - 1; i >= 0; i-- {
		if err := root.Remove(m.Files[i].Path); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
