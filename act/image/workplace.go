package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// A workplace is a folder for work in progress, locked by its process. The lock ends with
// the process, so the next one recognises and removes what a killed one left.
type workplace struct {
	dir  string
	lock *os.File
}

// errBusy: another process works in the folder.
var errBusy = errors.New("another process works on it")

// workplace makes an empty folder for key and locks it. If another process has it, it
// calls wait repeatedly; without wait it returns errBusy.
func (s *Store) workplace(key string, wait func() error) (*workplace, error) {
	dir := filepath.Join(s.dir, "building", key)
	for {
		w, err := claim(dir)
		if err == nil {
			return w, nil
		}
		if !errors.Is(err, errBusy) || wait == nil {
			return nil, err
		}
		if err := wait(); err != nil {
			return nil, err
		}
	}
}

// claim tries once. The lock is on the folder itself, so that no lock file remains. After
// locking it checks that the folder is still the one at the path.
func claim(dir string) (*workplace, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	f, err := os.Open(dir)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, errBusy // being removed
		}
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errBusy
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	held, err1 := f.Stat()
	there, err2 := os.Stat(dir)
	if err1 != nil || err2 != nil || !os.SameFile(held, there) {
		f.Close()
		return nil, errBusy
	}
	w := &workplace{dir: dir, lock: f}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	if err != nil {
		w.close()
		return nil, fmt.Errorf("sweep %s: %w", dir, err)
	}
	return w, nil
}

// close removes the folder.
func (w *workplace) close() error {
	err := os.RemoveAll(w.dir)
	return errors.Join(err, w.lock.Close())
}

// exclusiveWait limits the wait for other processes that change the store's lists, which
// takes a few renames and one deletion of a few files.
const exclusiveWait = 30 * time.Second

// exclusively makes changes of names atomic for other processes.
func (s *Store) exclusively(do func() error) error {
	f, err := os.Open(filepath.Join(s.dir, "names"))
	if err != nil {
		return err
	}
	defer f.Close()
	for limit := time.Now().Add(exclusiveWait); ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return do()
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(limit) {
			return fmt.Errorf("lock the image folder %s: %w", s.dir, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// sweep removes what killed processes left.
func (s *Store) sweep() {
	entries, err := os.ReadDir(filepath.Join(s.dir, "building"))
	if err != nil {
		return // the following build reports it
	}
	for _, e := range entries {
		if w, err := claim(filepath.Join(s.dir, "building", e.Name())); err == nil {
			_ = w.close() // retried by the next build
		}
	}
}

// patiently waits a moment and calls say once; for workplace's wait.
func patiently(ctx context.Context, say func()) func() error {
	said := false
	return func() error {
		if !said {
			say()
			said = true
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
			return nil
		}
	}
}
