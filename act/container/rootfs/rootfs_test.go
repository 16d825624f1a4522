package rootfs

import (
	"os"
	"path/filepath"
	"testing"

	"pagurus/internal/testkit"
)

// What is held on to is the directory that was opened, whatever its path leads to
// later, and letting go of it leaves what is in it alone.
func TestHoldOnToADirectory(t *testing.T) {
	if testing.Short() {
		t.Skip("contract ring: make test")
	}
	testkit.Root(t)
	base := t.TempDir()
	theirs, other, held := filepath.Join(base, "theirs"), filepath.Join(base, "other"), filepath.Join(base, "held")
	for dir, text := range map[string]string{theirs: "mine", other: "not mine"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	opened, err := os.Open(theirs)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	if err := os.Rename(theirs, theirs+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, theirs); err != nil {
		t.Fatal(err)
	}
	if err := HoldOn(opened, held); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { LetGo(held) })
	if text, err := os.ReadFile(filepath.Join(held, "file")); err != nil || string(text) != "mine" {
		t.Errorf("%q, %v", text, err)
	}
	for range 2 {
		if err := LetGo(held); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(held); !os.IsNotExist(err) {
		t.Errorf("its place is still there: %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(theirs+".moved", "file")); err != nil || string(text) != "mine" {
		t.Errorf("what was in it: %q, %v", text, err)
	}
	if err := os.MkdirAll(filepath.Join(held, "kept"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := LetGo(held); err == nil {
		t.Error("a place with something in it was removed")
	}
}
