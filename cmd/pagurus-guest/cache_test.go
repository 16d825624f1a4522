package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"pagurus/act/numa/recorded"
	"pagurus/fleet"
)

// meminfo is a guest's /proc/meminfo after reading some files.
const meminfo = `MemTotal:         496340 kB
MemFree:           84084 kB
MemAvailable:     302124 kB
Buffers:               4 kB
Cached:           289508 kB
Active(file):      34092 kB
Inactive(file):   190240 kB
Unevictable:       10816 kB
Dirty:                12 kB
Writeback:             0 kB
Mapped:            31500 kB
Shmem:             54236 kB
`

func TestCacheIsDroppedWhenToldAndOnlyThen(t *testing.T) {
	m := newMember(nil, t.TempDir())
	put := func(path, text string) {
		path = filepath.Join(m.root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const valve = "proc/sys/vm/drop_caches"
	put("proc/meminfo", meminfo)
	put(valve, "0")
	want := fleet.Cache{UsedBytes: (496340 - 84084) << 10, FreeBytes: 84084 << 10, CleanBytes: (34092 + 190240 - 31500 - 12) << 10, HotBytes: (34092 - 31500) << 10, Empties: true}
	if got, err := m.Cache(t.Context(), fleet.Spare{}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if text, _ := os.ReadFile(filepath.Join(m.root, valve)); string(text) != "0" {
		t.Errorf("unasked it wrote %q", text)
	}
	if got, err := m.Cache(t.Context(), fleet.Spare{Drop: true}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if text, _ := os.ReadFile(filepath.Join(m.root, valve)); string(text) != "1" {
		t.Errorf("told to drop it wrote %q", text)
	}
	if err := os.RemoveAll(filepath.Join(m.root, "proc")); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Cache(t.Context(), fleet.Spare{Drop: true}); err == nil {
		t.Error("where nothing can be dropped it was")
	}
	if got := readCache("nonsense\nDirty: x kB\nMapped: 9 kB\n:\n"); got.CleanBytes != 0 || got.HotBytes != 0 {
		t.Errorf("of nonsense it makes %+v", got)
	}
}

func TestTopologyIsThatOfTheRoot(t *testing.T) {
	m := newMember(nil, recorded.Machine(t, "2n6c2t"))
	if got, err := m.Topology(t.Context()); err != nil || len(got.Nodes) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := newMember(nil, t.TempDir()).Topology(t.Context()); err == nil {
		t.Error("a machine without processors has a topology")
	}
}

// TestFreeMemoryIsEmptied: by a process of its own, which ends also when nobody waits for it any more.
func TestFreeMemoryIsEmptied(t *testing.T) {
	m := newMember(crew(t), "/")
	if err := m.empty(t.Context(), 24<<20); err != nil {
		t.Error(err)
	}
	given, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.empty(given, 1<<40); err == nil {
		t.Error("memory that there is not was emptied after the end")
	}
	for _, args := range [][]string{nil, {"much"}, {"1", "2"}} {
		if status := emptyFree(args); status == 0 {
			t.Errorf("%q was taken", args)
		}
	}
}
