package vault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// This file keeps a copy of a checkpoint in a folder of a user's:
//
//	checkpoint.json     what it is: the text that the cluster has sealed
//	seal
//	unfinished          while it is written: which checkpoint it is to be; the writer holds a lock on it
//	manifests/GUEST.json
//	chunks/XX/XXXX…     as in a vault
//
// The description comes last, so a folder without it has no copy. What is there of an unfinished one is tested and not fetched
// again. Nothing is written outside the folder, whatever links others have put there.

const (
	copyText   = "checkpoint.json"
	copySeal   = "seal"
	unfinished = "unfinished"
	newSuffix  = ".new" // of a file that has not got its name yet
	mostSealed = 64 << 20
)

// Copying reports how much of a copy has passed, in bytes of the guests' files.
type Copying func(done, all int64)

// CheckCopy says why a folder cannot take a copy: of this checkpoint, or of one that is yet to be made if none is named. The
// folder is made if it is not there.
func CheckCopy(dir string, id fleet.CheckpointID) error {
	c, err := openCopy(dir, id)
	if err != nil {
		return err
	}
	return c.close(!c.begun)
}

// copying is a folder that is being written.
type copying struct {
	dir   string
	root  *os.Root
	lock  *os.File
	begun bool // it has something of the checkpoint already
	done  bool // it has all
}

func openCopy(dir string, id fleet.CheckpointID) (_ *copying, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, folderTrouble(err, dir)
	}
	if about, err := os.Stat(dir); err == nil && !about.IsDir() {
		return nil, folderTrouble(unix.ENOTDIR, dir)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, folderTrouble(err, dir)
	}
	c := &copying{dir: dir, root: root}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close(false))
		}
	}()
	if text, err := readIn(root, copyText, mostSealed); err == nil {
		is, wrong := fleet.ReadCopy(text)
		if wrong != nil || is.Checkpoint.ID != id {
			return c, fmt.Errorf("the folder %s has a copy of another checkpoint (%s): choose an empty one", dir, is.Checkpoint.ID)
		}
		c.done = true
		return c, nil
	}
	if err := c.beginCopy(id); err != nil {
		return c, err
	}
	return c, nil
}

// beginCopy takes the lock and makes sure that the folder has nothing but an unfinished copy of the checkpoint.
func (c *copying) beginCopy(id fleet.CheckpointID) error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return folderTrouble(err, c.dir)
	}
	of, err := readIn(c.root, unfinished, 1<<10)
	c.begun = err == nil && len(of) > 0
	switch {
	case c.begun && fleet.CheckpointID(of) != id:
		return fmt.Errorf("the folder %s has an unfinished copy of %s: `pagurus checkpoint copy %s --to %s` goes on with it, or choose an empty folder", c.dir, clean(of), clean(of), c.dir)
	case !c.begun:
		entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return e.Name() == unfinished || e.Name() == "lost+found" })
		if len(entries) > 0 {
			return fmt.Errorf("the folder %s is not empty (it has %s): choose an empty one", c.dir, entries[0].Name())
		}
	}
	if c.lock, err = c.root.OpenFile(unfinished, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600); err != nil {
		return folderTrouble(err, c.dir)
	}
	if err := unix.Flock(int(c.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("another program writes a copy into %s: wait for it", c.dir)
	}
	return nil
}

// close ends the writing. fresh removes what beginCopy has made, where nothing is to be written yet.
func (c *copying) close(fresh bool) error {
	var errs []error
	if fresh && c.lock != nil {
		errs = append(errs, c.root.Remove(unfinished))
	}
	if c.lock != nil {
		errs = append(errs, c.lock.Close())
	}
	return errors.Join(append(errs, c.root.Close())...)
}

// clean makes text of a folder fit for a message.
func clean(text []byte) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, string(text[:min(len(text), 64)]))
}

// folderTrouble says in a sentence what is wrong with a user's folder.
func folderTrouble(err error, dir string) error {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("%w: the disk that holds %s is full: make room there", ErrNoRoom, dir)
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%s cannot be written: its file system is read-only", dir)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("you may not write to %s: choose a folder of your own", dir)
	case errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%s is not a folder", dir)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("the folder %s is not there", dir)
	case errors.Is(err, unix.ESTALE), errors.Is(err, unix.EIO):
		return fmt.Errorf("the disk or server that holds %s does not work (%w)", dir, err)
	}
	return fmt.Errorf("%s: %w", dir, err)
}

// WriteCopy copies a checkpoint into a folder. After an error the folder has no copy, and what has come is not fetched again by
// the next WriteCopy.
func WriteCopy(ctx context.Context, dir string, of fleet.SealedCopy, from Chunks, told Copying) (err error) {
	is, err := fleet.ReadCopy(of.Text)
	if err != nil {
		return err
	}
	c, err := openCopy(dir, is.Checkpoint.ID)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close(false)) }()
	if c.done {
		return nil
	}
	if !c.begun {
		if _, err := c.lock.WriteString(string(is.Checkpoint.ID)); err != nil {
			return folderTrouble(err, dir)
		}
	}
	all, _ := is.Checkpoint.Bytes()
	w := &copyWriter{copying: c, from: from, told: tally{all: all, tell: told}}
	for _, p := range is.Checkpoint.Guests {
		if err := w.part(ctx, Part{Checkpoint: is.Checkpoint.ID, Guest: p.Guest}, p.Manifest); err != nil {
			return fmt.Errorf("copying guest %s of %s: %w", p.Guest, is.Checkpoint.ID, err)
		}
	}
	return c.finish(of)
}

// finish makes a copy of what is in the folder.
func (c *copying) finish(of fleet.SealedCopy) error {
	err := c.put(copySeal, of.Seal)
	if err == nil { // all chunks survive a power loss before the description does
		err = unix.Syncfs(int(c.lock.Fd()))
	}
	if err == nil {
		err = c.put(copyText, of.Text)
	}
	if err == nil {
		if err = c.root.Remove(unfinished); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		err = errors.Join(err, unix.Syncfs(int(c.lock.Fd())))
	}
	if err != nil {
		return folderTrouble(err, c.dir)
	}
	return nil
}

// put makes a file under its name, as a whole or not at all.
func (c *copying) put(name string, text []byte) (err error) {
	if err := c.root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := c.root.OpenFile(name+newSuffix, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, c.root.Remove(name+newSuffix))
	}
	return c.root.Rename(name+newSuffix, name)
}

func readIn(root *os.Root, name string, most int64) ([]byte, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // it may be a pipe
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s is not a file", name))
	}
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s is longer than %d bytes", name, most)
	}
	return text, err
}

// copyWriter is one WriteCopy.
type copyWriter struct {
	*copying
	from Chunks
	told tally
}

func (w *copyWriter) part(ctx context.Context, p Part, want fleet.Digest) error {
	text, err := w.from.Manifest(ctx, p)
	if err != nil {
		return err
	}
	m, err := manifestOf(p, text, want)
	if err != nil {
		return err
	}
	if err := w.put(copyManifest(p.Guest), text); err != nil {
		return folderTrouble(err, w.dir)
	}
	pool, within := errgroup.WithContext(ctx)
	pool.SetLimit(workers)
	seen := map[fleet.Digest]bool{}
	for _, f := range m.Files {
		for _, k := range f.Chunks {
			if seen[k.Digest] || within.Err() != nil {
				w.told.add(k.Bytes)
				continue
			}
			seen[k.Digest] = true
			pool.Go(func() error {
				err := w.chunk(within, p, k.Digest)
				w.told.add(k.Bytes)
				return err
			})
		}
	}
	if err := pool.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// chunk fetches a chunk unless it is there, whole.
func (w *copyWriter) chunk(ctx context.Context, p Part, d fleet.Digest) error {
	if packed, err := readIn(w.root, copyChunk(d), mostPacked); err == nil {
		if _, err := unpack(d, packed); err == nil {
			return nil
		}
	}
	packed, err := w.from.Chunk(ctx, p, d)
	if err != nil {
		return err
	}
	if _, err := unpack(d, packed); err != nil {
		return err
	}
	if err := w.put(copyChunk(d), packed); err != nil {
		return folderTrouble(err, w.dir)
	}
	return nil
}

func copyManifest(g fleet.GuestID) string { return manifestsFolder + "/" + string(g) + manifestSuffix }

func copyChunk(d fleet.Digest) string {
	hex := strings.TrimPrefix(string(d), digestPrefix)
	return chunksFolder + "/" + hex[:2] + "/" + hex
}

// manifestOf reads the manifest of a guest's part, which has to be a certain one.
func manifestOf(p Part, text []byte, want fleet.Digest) (Manifest, error) {
	if err := checkPart(p); err != nil {
		return Manifest{}, err
	}
	if got := DigestOf(text); got != want {
		return Manifest{}, fmt.Errorf("%w: the manifest is %s, not %s", ErrDamaged, short(got), short(want))
	}
	m, err := ParseManifest(text)
	if err == nil {
		err = m.copyOf(p)
	}
	return m, err
}

// tally counts what has passed.
type tally struct {
	mu        sync.Mutex
	done, all int64
	tell      Copying
}

func (t *tally) add(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done += n; t.tell != nil {
		t.tell(t.done, t.all)
	}
}

// ReadCopy says what a folder has a copy of. It does not test the seal, which only the cluster can.
func ReadCopy(dir string) (fleet.SealedCopy, fleet.CheckpointCopy, error) {
	var none fleet.CheckpointCopy
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fleet.SealedCopy{}, none, readTrouble(err, dir)
	}
	defer root.Close()
	var out fleet.SealedCopy
	if out.Text, err = readIn(root, copyText, mostSealed); errors.Is(err, fs.ErrNotExist) {
		if of, err := readIn(root, unfinished, 1<<10); err == nil && len(of) > 0 {
			return out, none, fmt.Errorf("the copy of %s in %s is unfinished: `pagurus checkpoint copy %s --to %s` finishes it, as long as the checkpoint is kept", clean(of), dir, clean(of), dir)
		}
		return out, none, fmt.Errorf("%s has no copy of a checkpoint: there is no %s", dir, copyText)
	}
	if err == nil {
		out.Seal, err = readIn(root, copySeal, 1<<10)
	}
	if err != nil {
		return out, none, readTrouble(err, dir)
	}
	is, err := fleet.ReadCopy(out.Text)
	if err != nil {
		return out, none, fmt.Errorf("the copy in %s: %w", dir, err)
	}
	return out, is, nil
}

func readTrouble(err error, dir string) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("you may not read %s: its owner may", dir)
	}
	return folderTrouble(err, dir)
}

// GiveBack puts the parts of a copy into vaults again, as a checkpoint of another name. It tests all that it reads.
func GiveBack(ctx context.Context, dir string, as fleet.CheckpointID, to Chunks, told Copying) error {
	_, is, err := ReadCopy(dir)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return readTrouble(err, dir)
	}
	defer root.Close()
	all, _ := is.Checkpoint.Bytes()
	g := &giving{dir: dir, root: root, to: to, told: tally{all: all, tell: told}}
	for _, p := range is.Checkpoint.Guests {
		if err := g.give(ctx, Part{Checkpoint: as, Guest: p.Guest}, p.Manifest); err != nil {
			return fmt.Errorf("guest %s of the copy in %s: %w", p.Guest, dir, err)
		}
	}
	return nil
}

// damagedCopy is an ErrDamaged that is about a copy, and says so.
type damagedCopy struct{ error }

func (d damagedCopy) Error() string {
	return "the copy is damaged: " + strings.TrimPrefix(d.error.Error(), ErrDamaged.Error()+": ")
}

func (d damagedCopy) Unwrap() error { return d.error }

// giving is one GiveBack.
type giving struct {
	dir  string
	root *os.Root
	to   Chunks
	told tally
}

func (g *giving) give(ctx context.Context, p Part, want fleet.Digest) error {
	text, err := readIn(g.root, copyManifest(p.Guest), MostManifest)
	if err != nil {
		return g.lost(err, "its manifest")
	}
	m, err := manifestOf(p, text, want)
	if err != nil {
		return damagedCopy{err}
	}
	sizes := map[fleet.Digest]int64{}
	var names []fleet.Digest
	for _, f := range m.Files {
		for _, k := range f.Chunks {
			if sizes[k.Digest] == 0 {
				names = append(names, k.Digest)
			}
			sizes[k.Digest] += k.Bytes
		}
	}
	for batch := range slices.Chunk(names, batchChunks) {
		missing, err := g.to.Missing(ctx, p, batch)
		if err != nil {
			return err
		}
		pool, within := errgroup.WithContext(ctx)
		pool.SetLimit(workers)
		for _, d := range missing {
			pool.Go(func() error { return g.chunk(within, p, d) })
		}
		if err := errors.Join(pool.Wait(), ctx.Err()); err != nil {
			return err
		}
		for _, d := range batch {
			g.told.add(sizes[d])
		}
	}
	return g.to.PutManifest(ctx, p, text)
}

func (g *giving) chunk(ctx context.Context, p Part, d fleet.Digest) error {
	if !validDigest(d) {
		return fmt.Errorf("%q is not the name of a chunk", d)
	}
	packed, err := readIn(g.root, copyChunk(d), mostPacked)
	if err != nil {
		return g.lost(err, "chunk "+short(d))
	}
	if _, err := unpack(d, packed); err != nil {
		return damagedCopy{err}
	}
	return g.to.PutChunk(ctx, p, d, packed)
}

// lost is the error of a file that has to be there.
func (g *giving) lost(err error, what string) error {
	if errors.Is(err, fs.ErrNotExist) {
		return damagedCopy{fmt.Errorf("%w: %s is missing", ErrDamaged, what)}
	}
	return readTrouble(err, g.dir)
}
