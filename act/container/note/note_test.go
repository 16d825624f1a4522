package note

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestNote(t *testing.T) {
	path := filepath.Join(t.TempDir(), "note.json")
	var got map[string]int
	if err := Read(path, &got); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of nothing it reads %v: %v", got, err)
	}
	for n := range 2 {
		if err := Write(path, map[string]int{"a": n}); err != nil {
			t.Fatal(err)
		}
		if err := Read(path, &got); err != nil || got["a"] != n {
			t.Errorf("it reads %v: %v", got, err)
		}
	}
	if err := Write(path, func() {}); err == nil {
		t.Error("what is no value was written")
	}
	if err := os.Mkdir(path+".new", 0o700); err != nil { // as when there is no room
		t.Fatal(err)
	}
	if err := Write(path, map[string]int{"a": 7}); err == nil {
		t.Error("it was written where nothing can be")
	}
	if err := Read(path, &got); err != nil || got["a"] != 1 {
		t.Errorf("after that it reads %v: %v", got, err)
	}
	if err := os.WriteFile(path, []byte("{half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Read(path, &got); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("half of it is read as %v", got)
	}
}
