// Package note keeps values beyond a process's life: a file that is replaced as a whole,
// mostly with one value as JSON.
//
// It does not know the content. Its tests run on real files.
package note

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Load reads what Replace has written. A missing file is an fs.ErrNotExist.
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

// Replace writes a value as JSON to a file, like Write. Nothing is synced: a host that loses
// power has lost the value's subject as well.
func Replace(path string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return Write(path, text, 0o600)
}

// Write replaces a file with text, completely or not at all: a reader sees the old content
// or the new one, and after an error the old one remains. A power loss may leave neither.
func Write(path string, text []byte, mode fs.FileMode) error {
	return write(path, text, mode, func(*os.File) error { return nil })
}

// WriteDurably is Write for content that must survive a power loss.
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
		err = errors.Join(f.Chmod(mode), sync(f)) // a full disk may report it only at the sync
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
