// Package note keeps what has to be remembered beyond a process's own life: one value in
// one file of JSON, which is replaced whole.
//
// It does not know what is remembered. Its tests run on real files.
package note

import (
	"encoding/json"
	"fmt"
	"os"
)

// Read reads a file into a value. There being none is an fs.ErrNotExist.
func Read(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// Write replaces a file. After an error it is as it was. Nothing is synced: a host that
// loses power has lost what it is about as well.
func Write(path string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
