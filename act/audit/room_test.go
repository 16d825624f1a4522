package audit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
		defer l.Close()
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
	if err != nil || len(all) != keptParts {
		t.Errorf("%d parts are kept: %v", len(all), err)
	}
	l.bounds.Reserve = 0
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
	if bytes := size(t, folder); bytes > partLeast {
		t.Errorf("%d bytes are there", bytes)
	}
	var on []string
	if _, err := l.Read(t.Context(), time.Time{}, func(r fleet.AuditRecord) error { on = append(on, r.On); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(on) != 3 || on[0] != "j1" || !strings.Contains(on[1], "records from 2026-10-01T00:00:00Z to 2026-10-01T00:00:00Z") || on[2] != "j2" {
		t.Errorf("it has %q", on)
	}
}
