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

// Lock is a file that one process at a time holds. It is released when the process ends
// for any reason.
type Lock struct{ file *os.File }

// Held: another process holds the lock.
type Held struct{ Path, By string }

// Error says which program holds it.
func (h Held) Error() string {
	return fmt.Sprintf("%s is already running here (it holds %s)", h.By, h.Path)
}

// The child of a killed process holds its lock until it runs its own program.
const (
	heldLimit = 2 * time.Second
	heldAgain = 20 * time.Millisecond
)

// HoldLock takes a lock, and writes its purpose into the file. The error is a Held if
// another process keeps holding it.
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
		return nil, fmt.Errorf("making the folder of %s: %w", path, err)
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
		// The former holder may have removed it in between.
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

// Release releases the lock and removes its file.
func (l *Lock) Release() error { return errors.Join(os.Remove(l.file.Name()), l.file.Close()) }
