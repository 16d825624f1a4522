package daemon

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Lock is a file that one process at a time holds. It is let go of when the
// process ends, however that happens.
type Lock struct{ file *os.File }

// Held is the error that somebody else holds a lock.
type Held struct{ Path, By string }

// Error says who holds it.
func (h Held) Error() string {
	return fmt.Sprintf("%s is already running here (it holds %s)", h.By, h.Path)
}

// What a process that was killed was just starting holds its lock until it runs
// its own program.
const (
	heldLimit = 2 * time.Second
	heldAgain = 20 * time.Millisecond
)

// HoldLock takes a lock, and writes into its file what it is held for. The error
// is a Held if somebody else has it, and not only for a moment.
func HoldLock(path, purpose string) (*Lock, error) {
	for begun := time.Now(); ; time.Sleep(heldAgain) {
		l, err := takeLock(path, purpose)
		if held := (Held{}); !errors.As(err, &held) || time.Since(begun) > heldLimit {
			return l, err
		}
	}
}

func takeLock(path, purpose string) (*Lock, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return nil, fmt.Errorf("opening the lock file: %w", err)
		}
		l := &Lock{f}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			holder, _ := io.ReadAll(io.LimitReader(f, 200))
			_ = f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, Held{Path: path, By: strings.TrimSpace(string(holder))}
			}
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		// Whoever held it before may have removed it between our two steps.
		mine, err1 := f.Stat()
		there, err2 := os.Stat(path)
		if err1 != nil || err2 != nil || !os.SameFile(mine, there) {
			_ = f.Close()
			continue
		}
		if err := errors.Join(f.Truncate(0), write(f, purpose)); err != nil {
			return nil, fmt.Errorf("writing %s: %w", path, errors.Join(err, l.Release()))
		}
		return l, nil
	}
}

func write(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text+"\n"), 0)
	return err
}

// Release gives the lock back and removes its file.
func (l *Lock) Release() error { return errors.Join(os.Remove(l.file.Name()), l.file.Close()) }
