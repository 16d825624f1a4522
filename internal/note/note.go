// Package note keeps what has to be remembered beyond a process's own life: one value in
// one file of JSON, which is replaced whole.
//
// It does not know what is remembered. Its tests run on real files.
package note

import (
	"encoding/json"
	"errors"
	"fmt"
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

// Replace writes a value as JSON in a file's place, whole or not at all. Nothing is
// synced: a host that loses power has lost what it is about as well.
func Replace(path string, value any) (err error) {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
