package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"pagurus/act/numa"
	"pagurus/fleet"
)

// Cache reports how much memory the guest could do without, by the kernel's count. If it
// is to, it first drops the page cache: only pages that equal their file and that no program
// has mapped. So nothing is lost, and programs keep their code. That takes a CPU about a
// millisecond per 10 MiB, some milliseconds under emulation. A container has no page cache
// of its own, and none moves with it. Then it empties free memory.
func (m *member) Cache(ctx context.Context, s fleet.Spare) (fleet.Cache, error) {
	if contained {
		return fleet.Cache{}, nil
	}
	if s.Drop {
		if err := os.WriteFile(filepath.Join(m.root, "proc/sys/vm/drop_caches"), []byte("1"), 0); err != nil {
			return fleet.Cache{}, fmt.Errorf("dropping the page cache: %w", err)
		}
	}
	if s.EmptyBytes > 0 {
		if err := m.empty(ctx, s.EmptyBytes); err != nil {
			return fleet.Cache{}, fmt.Errorf("emptying free memory: %w", err)
		}
	}
	text, err := os.ReadFile(filepath.Join(m.root, "proc/meminfo"))
	if err != nil {
		return fleet.Cache{}, fmt.Errorf("asking the kernel how memory is used: %w", err)
	}
	c := readCache(string(text))
	c.Empties = true
	return c, nil
}

// Topology gives the processors and memory that the guest sees.
func (m *member) Topology(context.Context) (fleet.Topology, error) { return numa.Read(m.root) }

// readCache parses /proc/meminfo. Pages that programs have mapped are mostly among the
// active ones.
func readCache(meminfo string) fleet.Cache {
	at := readMeminfo(meminfo)
	clean := at["Active(file)"] + at["Inactive(file)"] - at["Mapped"] - at["Dirty"] - at["Writeback"]
	c := fleet.Cache{UsedBytes: max(0, at["MemTotal"]-at["MemFree"]), FreeBytes: at["MemFree"], CleanBytes: max(0, clean)}
	c.HotBytes = min(c.CleanBytes, max(0, at["Active(file)"]-at["Mapped"]))
	return c
}

// readMeminfo parses /proc/meminfo, into bytes by their names.
func readMeminfo(text string) map[string]int64 {
	at := map[string]int64{}
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(line, ":")
		if words := strings.Fields(rest); len(words) > 0 {
			kib, _ := strconv.ParseInt(words[0], 10, 64)
			at[name] = kib << 10
		}
	}
	return at
}
