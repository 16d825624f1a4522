package vault

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"pagurus/internal/fault"
)

// place is where a store has its files: a folder of a disk, or a bucket.
type place interface {
	files
	// open makes the place ready for this process alone. close has to be called.
	open() error
	close() error
	// spare is how much more may be put.
	spare() (int64, error)
	// said turns an error into one sentence.
	said(error) error
	// slow: others may not wait while it removes something.
	slow() bool
	// String says where it is.
	String() string
}

// files are those of a place. Names have slashes, below the store.
type files interface {
	// list gives all files below a folder with their lengths.
	list(folder string) (map[string]int64, error)
	// read gives a file; fs.ErrNotExist: there is none.
	read(name string) ([]byte, error)
	// write makes a file, as a whole or not at all. what names it for tests. It survives a power loss after syncFiles.
	write(name string, text []byte, what string) error
	// syncFiles makes files survive a power loss, with their names.
	syncFiles(names []string) error
	// remove removes a file, or a folder with all that is in it, for good. An absent one is not an error.
	remove(name string) error
	// length is how long a file is. A place that keeps what it has been given says what was said.
	length(name string, said int64) (int64, error)
}

// disk is a folder.
type disk struct {
	dir  string
	lock *os.File
}

func (d *disk) String() string { return d.dir }

func (d *disk) slow() bool { return false }

func (d *disk) path(name string) string { return filepath.Join(d.dir, filepath.FromSlash(name)) }

func (d *disk) open() error {
	if err := fit(d.dir); err != nil {
		return err
	}
	for _, name := range []string{"", chunksFolder, manifestsFolder, puttingFolder} {
		if err := os.MkdirAll(d.path(name), 0o700); err != nil {
			return fmt.Errorf("make the vault: %w", d.said(err))
		}
	}
	if err := os.Chmod(d.dir, 0o700); err != nil { // it may have been there, empty
		return fmt.Errorf("make the vault: %w", err)
	}
	// The lock keeps another process from removing what this one is about to use.
	f, err := os.OpenFile(d.path(lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open the vault: %w", d.said(err))
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return fmt.Errorf("another process uses the vault %s: stop it, or choose another folder", d.dir)
	}
	d.lock = f
	entries, err := os.ReadDir(d.path(puttingFolder))
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(d.path(puttingFolder), e.Name())))
	}
	return err
}

func (d *disk) close() error { return d.lock.Close() }

func (d *disk) list(folder string) (map[string]int64, error) {
	out := map[string]int64{}
	err := filepath.WalkDir(d.path(folder), func(at string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if name, err := filepath.Rel(d.dir, at); err == nil && info.Mode().IsRegular() {
			out[filepath.ToSlash(name)] = info.Size()
		}
		return nil
	})
	return out, err
}

func (d *disk) read(name string) ([]byte, error) { return os.ReadFile(d.path(name)) }

// write begins to sync: it does not wait, and it is only a hint. A manifest is synced at once, since it says that all is there.
func (d *disk) write(name string, text []byte, what string) (err error) {
	sync := beginSync
	if what == manifestKind {
		sync = (*os.File).Sync
	}
	f, err := os.CreateTemp(d.path(puttingFolder), what+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			if gone := os.Remove(f.Name()); !errors.Is(gone, fs.ErrNotExist) { // it may have its name already
				err = errors.Join(err, gone)
			}
		}
	}()
	_, err = f.Write(text[:len(text)/2])
	if err == nil {
		err = fault.Point("vault." + what + ".half")
	}
	if err == nil {
		_, err = f.Write(text[len(text)/2:])
	}
	if err == nil {
		err = sync(f) // a full disk may report it only here
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fault.Point("vault." + what + ".written"); err != nil {
		return err
	}
	at := d.path(name)
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), at); err != nil {
		return err
	}
	return fault.Point("vault." + what + ".named")
}

// beginSync has the kernel begin to write a file to disk.
func beginSync(f *os.File) error {
	_ = unix.SyncFileRange(int(f.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE)
	return nil
}

// syncWorkers sync files at once: a file system does many with one commit of its journal.
const syncWorkers = 16

func (d *disk) syncFiles(names []string) error {
	var folders []string
	for _, name := range names {
		for at := path.Dir(name); at != "."; at = path.Dir(at) {
			folders = append(folders, at)
		}
	}
	slices.Sort(folders)
	for _, all := range [][]string{names, slices.Compact(folders)} {
		var pool errgroup.Group
		pool.SetLimit(syncWorkers)
		for _, name := range all {
			pool.Go(func() error { return syncPath(d.path(name)) })
		}
		if err := pool.Wait(); err != nil {
			return err
		}
	}
	return nil
}

func (d *disk) remove(name string) error {
	at := d.path(name)
	about, err := os.Lstat(at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !about.IsDir() {
		return os.Remove(at)
	}
	if err == nil {
		err = os.RemoveAll(at)
	}
	if err == nil {
		err = syncPath(filepath.Dir(at)) // chunks go after the manifest, also if power is lost
	}
	return err
}

func (d *disk) length(name string, _ int64) (int64, error) {
	info, err := os.Lstat(d.path(name))
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a file")
	}
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// errGone says that the folder is not the one that was opened.
var errGone = errors.New("its folder is gone, or another one is in its place: mount its disk, or make an empty folder, and start the agent again")

// gone returns errGone if the folder was removed, or its disk is not mounted any more.
func (d *disk) gone() error {
	var mine, here unix.Stat_t
	if unix.Fstat(int(d.lock.Fd()), &mine) != nil || unix.Stat(d.path(lockFile), &here) != nil || mine.Ino != here.Ino || mine.Dev != here.Dev {
		return errGone
	}
	return nil
}

// spare is what a vault may take of a disk: not its last tenth, which belongs to what the machine is for.
func (d *disk) spare() (int64, error) {
	if err := d.gone(); err != nil {
		return 0, err
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(d.dir, &disk); err != nil {
		return 0, err
	}
	return (int64(disk.Bavail) - int64(disk.Blocks/10)) * disk.Bsize, nil
}

func (d *disk) said(err error) error {
	if errors.Is(err, fs.ErrNotExist) && d.lock != nil && d.gone() != nil {
		return fmt.Errorf("the vault %s: %w", d.dir, errGone)
	}
	return said(err, d.dir)
}
