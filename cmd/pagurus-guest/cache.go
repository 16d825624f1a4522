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

// Cache says what the guest could do without, by the kernel's own count, after
// it has dropped its page cache if told to. That drops only what is in memory
// exactly as in its file and what no program has mapped: nothing is lost, and
// programs keep their code. It costs a processor about a millisecond for each
// 10 MiB, some milliseconds under emulation. A container has no cache of its
// own: nothing of it is moved.
func (m *member) Cache(_ context.Context, drop bool) (fleet.Cache, error) {
	if contained {
		return fleet.Cache{}, nil
	}
	if drop {
		if err := os.WriteFile(filepath.Join(m.root, "proc/sys/vm/drop_caches"), []byte("1"), 0); err != nil {
			return fleet.Cache{}, fmt.Errorf("dropping the page cache: %w", err)
		}
	}
	text, err := os.ReadFile(filepath.Join(m.root, "proc/meminfo"))
	if err != nil {
		return fleet.Cache{}, fmt.Errorf("asking the kernel how memory is used: %w", err)
	}
	c := readCache(string(text))
	c.Hints = m.hints()
	return c, nil
}

// Topology says what the guest sees of its processors and its memory.
func (m *member) Topology(context.Context) (fleet.Topology, error) { return numa.Read(m.root) }

// readCache understands /proc/meminfo. Pages that programs have mapped are
// among the active ones, mostly.
func readCache(meminfo string) fleet.Cache {
	at := map[string]int64{}
	for line := range strings.Lines(meminfo) {
		name, rest, _ := strings.Cut(line, ":")
		if words := strings.Fields(rest); len(words) > 0 {
			kib, _ := strconv.ParseInt(words[0], 10, 64)
			at[name] = kib << 10
		}
	}
	clean := at["Active(file)"] + at["Inactive(file)"] - at["Mapped"] - at["Dirty"] - at["Writeback"]
	c := fleet.Cache{UsedBytes: max(0, at["MemTotal"]-at["MemFree"]), FreeBytes: at["MemFree"], CleanBytes: max(0, clean)}
	c.HotBytes = min(c.CleanBytes, max(0, at["Active(file)"]-at["Mapped"]))
	return c
}

// hintFeature is the bit by which host and guest have agreed that the guest
// tells what is free (VIRTIO_BALLOON_F_FREE_PAGE_HINT).
const hintFeature = 3

// hints reports whether the kernel tells the host's mechanism what is free.
func (m *member) hints() bool {
	found, _ := filepath.Glob(filepath.Join(m.root, "sys/bus/virtio/drivers/virtio_balloon/virtio*/features"))
	for _, path := range found {
		if bits, err := os.ReadFile(path); err == nil && len(bits) > hintFeature && bits[hintFeature] == '1' {
			return true
		}
	}
	return false
}
