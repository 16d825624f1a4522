package note

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "guest.json")
	for _, v := range []string{"one", "two"} {
		if err := Replace(file, v); err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := Load(file, &got); err != nil || got != v {
			t.Errorf("%q, %v", got, err)
		}
	}
	if err := Replace(file, func() {}); err == nil {
		t.Error("what is no JSON was written")
	}
	if err := Replace(filepath.Join(dir, "none", "guest.json"), 1); err == nil {
		t.Error("written where no folder is")
	}
	if err := os.WriteFile(file, []byte("{half"), 0o644); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := Load(file, &got); err == nil {
		t.Errorf("%q was read of half a file", got)
	}
	if err := Load(filepath.Join(dir, "none"), &got); !os.IsNotExist(err) {
		t.Error(err)
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "text")
	for text, write := range map[string]func(string, []byte, os.FileMode) error{"one": Write, "two": WriteDurably} {
		if err := write(file, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(file)
		if err != nil || string(got) != text {
			t.Errorf("%q, %v", got, err)
		}
		if info, err := os.Stat(file); err != nil || info.Mode() != 0o640 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
	}
	// It cannot replace a folder, and nothing may be left over.
	if err := Write(dir, nil, 0o600); err == nil {
		t.Error("a file took a folder's place")
	}
	if all, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
}
