package audit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"pagurus/fleet"
)

// size is what an audit has on the disk.
func size(t interface{ Fatal(...any) }, folder string) (bytes int64) {
	all, err := list(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		bytes += p.bytes
	}
	return bytes
}

// Whatever is done how often, and whenever the controller starts again or a month ends: the audit never takes more than it may, what it has is the newest,
// in order and without gaps, and it says of everything else that it is gone.
func TestRoomIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		folder, err := os.MkdirTemp("", "audit")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(folder)
		bounds := Bounds{Most: partLeast * parts}
		l, err := Open(folder, bounds)
		if err != nil {
			t.Fatal(err)
		}
		at, n := t0, 0
		for range rapid.IntRange(1, 30).Draw(t, "turns") {
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
				if l, err = Open(folder, bounds); err != nil {
					t.Fatal(err)
				}
			case 1:
				at = at.Add(20 * 24 * time.Hour)
			}
			for range rapid.IntRange(1, 200).Draw(t, "many") {
				at = at.Add(time.Second)
				if err := l.Append(fleet.AuditRecord{At: at, Did: "cancel", On: fmt.Sprint("j", n, " ", strings.Repeat("x", rapid.IntRange(0, 1000).Draw(t, "long")))}); err != nil {
					t.Fatal(err)
				}
				n++
			}
			if bytes := size(t, folder); bytes > bounds.Most+partLeast {
				t.Fatalf("it takes %d bytes of %d", bytes, bounds.Most)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		has, removed, next := 0, 0, -1
		damaged, err := l.Read(t.Context(), time.Time{}, func(r fleet.AuditRecord) error {
			has++
			if r.Did == fleet.AuditRemoved {
				var lost int
				if _, err := fmt.Sscanf(r.On, "%d records from", &lost); err != nil || r.Who() != "the controller" {
					t.Fatalf("%s says %q", r.Who(), r.On)
				}
				removed += lost
				return nil
			}
			var i int
			if _, err := fmt.Sscanf(r.On, "j%d ", &i); err != nil || next >= 0 && i != next {
				t.Fatalf("after %d comes %q", next-1, r.On)
			}
			next = i + 1
			return nil
		})
		if err != nil || damaged > 0 || next != n {
			t.Fatalf("the last is %d of %d, %d are damaged: %v", next, n, damaged, err)
		}
		if all := has + removed; all < n { // what it said of itself may be gone, too, and counts in what went later
			t.Fatalf("%d are there and %d are said to be gone, of %d", has, removed, n)
		}
	})
}

// On a disk that is full nothing is written, the newest of the audit stays, and when there is room again it says what is missing.
func TestDiskWithoutRoom(t *testing.T) {
	folder := t.TempDir()
	l, err := Open(folder, Bounds{Most: partLeast * parts})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := t0
	for range 5000 {
		at = at.Add(time.Second)
		if err := l.Append(fleet.AuditRecord{At: at, Did: "cancel", On: strings.Repeat("x", 200)}); err != nil {
			t.Fatal(err)
		}
	}
	l.bounds.Reserve = 1 << 60
	for range 10 {
		at = at.Add(time.Second)
		if err := l.Append(fleet.AuditRecord{At: at, Did: "cancel"}); !errors.Is(err, errNoRoom) {
			t.Fatalf("on a full disk: %v", err)
		}
	}
	all, err := list(folder)
	if bytes := size(t, folder); err != nil || bytes < keptParts*partLeast || bytes-all[0].bytes >= keptParts*partLeast {
		t.Errorf("%d bytes are kept: %v", bytes, err)
	}
	l.bounds.Reserve = 0
	l.counting.Wait()
	add(t, l, at.Add(time.Second), "j1")
	var says []string
	if _, err := l.Read(t.Context(), at, func(r fleet.AuditRecord) error {
		if r.Did != "cancel" {
			says = append(says, fmt.Sprint(r.Who(), " ", r.Did, ": ", r.On, ", ", r.Failed))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(says, "\n"); !strings.Contains(text, "the controller miss records: 10 records from 2026-12-01T01:22:21Z to 2026-12-01T01:22:30Z, the disk has too little room") || !strings.Contains(text, "remove old records: ") {
		t.Errorf("it says %s", text)
	}
}

// What an earlier version has kept in one file a month is read, counted and removed as the rest.
func TestFilesOfAnEarlierVersion(t *testing.T) {
	folder := t.TempDir()
	line := `{"at":"2026-10-01T00:00:00Z","by":{"uid":1,"gid":0,"admin":false},"did":"cancel","on":"old"}` + "\n"
	if err := os.WriteFile(filepath.Join(folder, "2026-10.jsonl"), []byte(strings.Repeat(line, 2*partLeast*parts/len(line))), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := Open(folder, Bounds{Most: partLeast * parts})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	add(t, l, t0, "j1") // until there is another part it stays
	add(t, l, t0, "j2")
	l.counting.Wait()
	add(t, l, t0, "j3")
	if bytes := size(t, folder); bytes > partLeast {
		t.Errorf("%d bytes are there", bytes)
	}
	var on []string
	if _, err := l.Read(t.Context(), time.Time{}, func(r fleet.AuditRecord) error { on = append(on, r.On); return nil }); err != nil {
		t.Fatal(err)
	}
	if removed := slices.IndexFunc(on, func(what string) bool {
		return strings.Contains(what, "records from 2026-10-01T00:00:00Z to 2026-10-01T00:00:00Z")
	}); len(on) != 4 || removed < 1 {
		t.Errorf("it has %q", on)
	}
}

// Nobody waits until what was in a file that goes is counted, and it is said nevertheless.
func TestRemovingKeepsNobodyWaiting(t *testing.T) {
	folder := t.TempDir()
	slow := filepath.Join(folder, "2026-09.jsonl")
	if err := unix.Mkfifo(slow, 0o600); err != nil {
		t.Fatal(err)
	}
	end, err := os.OpenFile(slow, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "2026-10.jsonl"), make([]byte, 2*partLeast*parts), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := Open(folder, Bounds{Most: partLeast * parts})
	if err != nil {
		t.Fatal(err)
	}
	add(t, l, t0, "j1")
	if _, err := end.WriteString(`{"at":"2026-09-01T00:00:00Z","did":"cancel"}` + "\n"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(end.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	var says []string
	if _, err := l.Read(t.Context(), time.Time{}, func(r fleet.AuditRecord) error { says = append(says, r.On); return nil }); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(says, "1 records from 2026-09-01T00:00:00Z to 2026-09-01T00:00:00Z") {
		t.Errorf("it says %q", says)
	}
}

// A month that has just begun is no reason to keep less.
func TestASmallFileIsNotAShare(t *testing.T) {
	folder := t.TempDir()
	for name, bytes := range map[string]int{"2026-09.jsonl": partLeast, "2026-10.jsonl": partLeast, "2026-10.p000002.jsonl": partLeast, "2026-11.jsonl": 10} {
		if err := os.WriteFile(filepath.Join(folder, name), make([]byte, bytes), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, err := Open(folder, Bounds{Most: partLeast * parts, Reserve: 1 << 60})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Append(fleet.AuditRecord{At: t0, Did: "cancel"}); !errors.Is(err, errNoRoom) {
		t.Fatalf("on a full disk: %v", err)
	}
	if bytes := size(t, folder); bytes != 2*partLeast+10 {
		t.Errorf("%d bytes are kept", bytes)
	}
}
