package audit

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pagurus/fleet"
)

var t0 = time.Date(2026, 11, 30, 23, 59, 0, 0, time.UTC)

func read(t *testing.T, l *Log, since time.Time) (ons []string, damaged int) {
	t.Helper()
	damaged, err := l.Read(t.Context(), since, func(r fleet.AuditRecord) error {
		ons = append(ons, r.On)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return ons, damaged
}

func add(t *testing.T, l *Log, at time.Time, on string) {
	t.Helper()
	if err := l.Append(fleet.AuditRecord{At: at, By: fleet.Caller{UID: 1}, Did: "cancel", On: on}); err != nil {
		t.Fatal(err)
	}
}

// A month ends, the controller starts again, and everything is still there.
func TestKept(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "audit")
	l, err := Open(folder, Bounds{})
	if err != nil {
		t.Fatal(err)
	}
	add(t, l, t0, "j1")
	add(t, l, t0.Add(2*time.Minute), "j2")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err = Open(folder, Bounds{}); err != nil {
		t.Fatal(err)
	}
	add(t, l, t0.Add(3*time.Minute), "j3")
	if got, damaged := read(t, l, time.Time{}); !slices.Equal(got, []string{"j1", "j2", "j3"}) || damaged != 0 {
		t.Errorf("%v, %d damaged", got, damaged)
	}
	if got, _ := read(t, l, t0.Add(time.Minute)); !slices.Equal(got, []string{"j2", "j3"}) {
		t.Errorf("since: %v", got)
	}
	info, err := os.Stat(filepath.Join(folder, "2026-12.jsonl"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	enough := errors.New("enough")
	if _, err := l.Read(t.Context(), time.Time{}, func(fleet.AuditRecord) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("it reads on: %v", err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := l.Read(ended, time.Time{}, func(fleet.AuditRecord) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("it reads on: %v", err)
	}
}

// A power cut may leave half a line, or a file of zeros. The records beside it count.
func TestDamaged(t *testing.T) {
	l, err := Open(t.TempDir(), Bounds{})
	if err != nil {
		t.Fatal(err)
	}
	add(t, l, t0, "j1")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(filepath.Join(l.folder, "2026-11.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, junk := range []string{"{}\n", strings.Repeat("x", 3*lineLimit) + "\n", strings.Repeat("\x00", 100) + "\n", `{"at":"2026-11-30T`} {
		if _, err := file.WriteString(junk); err != nil {
			t.Fatal(err)
		}
	}
	file.Close()
	add(t, l, t0, "j2")
	if got, damaged := read(t, l, time.Time{}); !slices.Equal(got, []string{"j1", "j2"}) || damaged != 4 {
		t.Errorf("%v, %d damaged", got, damaged)
	}
}

// A disk that is full is an error, and what follows begins on its own line, and says what is missing.
func TestFull(t *testing.T) {
	l, err := Open(t.TempDir(), Bounds{})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/full", filepath.Join(l.folder, "2026-11.jsonl")); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(fleet.AuditRecord{At: t0}); err == nil {
		t.Error("it was written to a full disk")
	}
	if err := os.Remove(filepath.Join(l.folder, "2026-11.jsonl")); err != nil {
		t.Fatal(err)
	}
	add(t, l, t0, "j1")
	if got, _ := read(t, l, time.Time{}); len(got) != 2 || !strings.HasPrefix(got[0], "1 records from") || got[1] != "j1" {
		t.Errorf("%v", got)
	}
}

func TestManyAtOnce(t *testing.T) {
	l, err := Open(t.TempDir(), Bounds{})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				add(t, l, t0, "j")
			}
		})
	}
	all.Wait()
	if got, damaged := read(t, l, time.Time{}); len(got) != 400 || damaged != 0 {
		t.Errorf("%d records, %d damaged", len(got), damaged)
	}
}
