package qemu

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func put(t *testing.T, s snapshots, name string) {
	t.Helper()
	d, err := s.Draft(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.WriteString("of " + name); err != nil {
		t.Fatal(err)
	}
	if err := d.KeepSnapshot(); err != nil {
		t.Fatal(err)
	}
}

// has opens a snapshot and checks its content.
func has(t *testing.T, s snapshots, name string) bool {
	t.Helper()
	f := s.Find(name)
	if f == nil {
		return false
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil || string(b) != "of "+name {
		t.Errorf("%s holds %q, %v", name, b, err)
	}
	return true
}

func TestSnapshotsKeepWhatIsUsed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "when needed")
	s := openSnapshots(dir, 2)
	if has(t, s, "a") {
		t.Error("found in a folder that is not there")
	}
	old := time.Now().Add(-time.Hour)
	for _, name := range []string{"a", "b"} {
		put(t, s, name)
		if err := os.Chtimes(filepath.Join(dir, name), old, old); err != nil {
			t.Fatal(err)
		}
	}
	has(t, s, "a") // used after b
	put(t, s, "c")
	for name, want := range map[string]bool{"a": true, "b": false, "c": true} {
		if has(t, s, name) != want {
			t.Errorf("%s is kept: %t", name, !want)
		}
	}
	for range 2 {
		if err := s.Remove("a"); err != nil {
			t.Error(err)
		}
	}
	if has(t, s, "a") {
		t.Error("removed and still there")
	}
}

func TestOneMakesASnapshot(t *testing.T) {
	dir := t.TempDir()
	s := openSnapshots(dir, 2)
	d, err := s.Draft("a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Draft("a"); !errors.Is(err, errSnapshotBusy) {
		t.Errorf("a second draft at once: %v", err)
	}
	put(t, s, "b") // which tidies, and ignores drafts
	if err := d.Drop(); err != nil {
		t.Fatal(err)
	}
	if has(t, s, "a") {
		t.Error("given up and there")
	}
	// The draft of an agent that died is overwritten.
	if err := os.WriteFile(filepath.Join(dir, ".new-a"), []byte("half of something longer"), 0o600); err != nil {
		t.Fatal(err)
	}
	put(t, s, "a")
	if !has(t, s, "a") {
		t.Error("not there")
	}
	if _, err := s.Draft("a"); !errors.Is(err, errSnapshotBusy) {
		t.Errorf("a draft of what is there: %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("in the folder: %v, %v", entries, err)
	}
}

// TestWaitingEnds: waiting for a guest that never opens its port ends.
func TestWaitingEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	silent := func(context.Context, string, any, any) error { return nil }
	if err := loadSnapshot(ctx, silent, 4); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}
