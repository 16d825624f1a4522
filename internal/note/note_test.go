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
