// Package note keeps what has to be remembered beyond a process's own life: a file that is
// replaced whole, mostly with one value as JSON.
//
// It does not know what is remembered. Its tests run on real files.
package note

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Load reads what Replace has written. There being nothing is an fs.ErrNotExist.
func Load(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// Replace writes a value as JSON in a file's place. Nothing is synced: a host that loses
// power has lost what the value is about as well.
func Replace(path string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return Write(path, text, 0o600)
}

// Write puts text in a file's place, whole or not at all: a reader sees the old content or
// the new one, and after an error the old one stands. A loss of power may leave neither.
func Write(path string, text []byte, mode fs.FileMode) error {
	return write(path, text, mode, func(*os.File) error { return nil })
}

// WriteDurably is Write for what must survive a loss of power.
func WriteDurably(path string, text []byte, mode fs.FileMode) error {
	return write(path, text, mode, (*os.File).Sync)
}

func write(path string, text []byte, mode fs.FileMode, sync func(*os.File) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(text)
	if err == nil {
		err = errors.Join(f.Chmod(mode), sync(f)) // a full disk may only say so at the sync
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
