package sandbox

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pagurus/internal/testkit"
)

// TestSweepOld: folders of killed CRIUs are removed. Folders in use, and folders with content,
// are not.
func TestSweepOld(t *testing.T) {
	base := t.TempDir()
	old := time.Now().Add(-2 * time.Hour)
	for name, age := range map[string]time.Time{"yard.left": old, "yard.used": time.Now(), "yard.full/theirs": old, "other": old} {
		dir := filepath.Join(base, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(dir, age, age); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(filepath.Join(base, "yard.full"), old, old); err != nil {
		t.Fatal(err)
	}
	sweepOld(filepath.Join(base, "yard.*"), time.Now().Add(-time.Hour))
	left, err := filepath.Glob(filepath.Join(base, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range left {
		left[i] = filepath.Base(left[i])
	}
	if want := []string{"other", "yard.full", "yard.used"}; !slices.Equal(left, want) {
		t.Errorf("left are %q instead of %q", left, want)
	}
}

// TestHoldOnToADirectory: the opened directory is held, even if its path leads elsewhere later.
// Releasing it does not touch its content.
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
	if err := HoldFiles(opened, held); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ReleaseFiles(held) })
	if text, err := os.ReadFile(filepath.Join(held, "file")); err != nil || string(text) != "mine" {
		t.Errorf("%q, %v", text, err)
	}
	for range 2 {
		if err := ReleaseFiles(held); err != nil {
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
	if err := ReleaseFiles(held); err == nil {
		t.Error("a place with something in it was removed")
	}
}
