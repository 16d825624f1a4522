// Package tuned tells QEMU what a guest sees of itself and where its memory is,
// and keeps its CPUs where they shall be.
//
// It must not know why. Its tests pin threads of the test, and package qemu's
// look from inside a guest.
package tuned

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// Guest is a guest with a shape on one host. Nil is one without.
type Guest struct {
	Shape       fleet.Shape
	Layout      fleet.Layout
	MemoryBytes int64 // in whole MiB
	More        int64 // what each part of the memory is larger than that
}

// Small leaves huge pages out, and says so: emulated guests of several nodes, and all of
// older QEMUs, have memory of odd sizes, which no huge page is.
func (g *Guest) Small() {
	nodes := slices.Clone(g.Layout.Nodes)
	for i := range nodes {
		if nodes[i].PageBytes > 0 {
			nodes[i].PageBytes = 0
			g.Layout.Notes = append(slices.Clone(g.Layout.Notes), fmt.Sprintf("node %d of the guest has no huge pages: this QEMU moves its memory only in odd sizes, since it is emulated", i))
		}
	}
	g.Layout.Nodes = nodes
}

// At is where its parts are; nil of a guest without a shape.
func (g *Guest) At() *fleet.Layout {
	if g == nil {
		return nil
	}
	return &g.Layout
}

// Args are QEMU's -smp, and what goes with nodes and huge pages. -m has to say
// Bytes. Both sides of a migration give the same names and sizes; pages and nodes of
// the host may differ. First is the number that QEMU has of the first of Reserve's
// files.
func (g *Guest) Args(first int) []string {
	s, l := g.Shape, g.Layout
	out := []string{"-smp", fmt.Sprintf("%d,sockets=%d,cores=%d,threads=%d", s.Sockets*s.Cores*s.Threads, s.Sockets, s.Cores, s.Threads)}
	part := func(i int) fleet.LayoutNode {
		if i < len(l.Nodes) {
			return l.Nodes[i]
		}
		return fleet.LayoutNode{}
	}
	for i, bytes := range g.sizes() {
		out = append(out, "-object", memory(i, bytes, part(i), first))
		if part(i).PageBytes > 0 {
			first++
		}
	}
	if len(s.Nodes) == 0 {
		return append(out, "-machine", "memory-backend=node0")
	}
	cpu := 0
	for i, n := range s.Nodes {
		cpus := ""
		for range n.CPUs {
			cpus += fmt.Sprintf(",cpus=%d", cpu)
			cpu++
		}
		out = append(out, "-numa", fmt.Sprintf("node,nodeid=%d,memdev=node%d%s", i, i, cpus))
	}
	for i, n := range s.Nodes {
		for j, d := range n.Distances {
			if i != j {
				out = append(out, "-numa", fmt.Sprintf("dist,src=%d,dst=%d,val=%d", i, j, d))
			}
		}
	}
	return out
}

// sizes are those of the guest's memory, by node; one of a guest without nodes.
func (g *Guest) sizes() (all []int64) {
	for _, n := range g.Shape.Nodes {
		all = append(all, n.MemoryBytes)
	}
	if len(all) == 0 {
		all = []int64{g.MemoryBytes}
	}
	for i := range all {
		all[i] += g.More
	}
	return all
}

// Bytes is how much memory there is in all.
func (g *Guest) Bytes() (sum int64) {
	for _, n := range g.sizes() {
		sum += n
	}
	return sum
}

// Reserve makes files in memory of the huge pages that a layout has, in the order
// of its nodes. QEMU is to inherit them, since it may make no files so large
// itself; they can be closed here then.
func (g *Guest) Reserve() (files []*os.File, err error) {
	if g == nil {
		return nil, nil
	}
	defer func() {
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
			files = nil
		}
	}()
	for i, bytes := range g.sizes() {
		if i >= len(g.Layout.Nodes) || g.Layout.Nodes[i].PageBytes == 0 {
			continue
		}
		page := g.Layout.Nodes[i].PageBytes
		// The kernel wants the size's logarithm among the flags.
		flags := unix.MFD_CLOEXEC | unix.MFD_HUGETLB | bits.TrailingZeros64(uint64(page))<<unix.MFD_HUGE_SHIFT
		fd, err := unix.MemfdCreate(fmt.Sprintf("node%d", i), flags)
		if err != nil {
			return files, fmt.Errorf("make memory of pages of %d bytes: %w", page, err)
		}
		f := os.NewFile(uintptr(fd), fmt.Sprintf("node%d", i))
		files = append(files, f)
		if err := f.Truncate((bytes + page - 1) / page * page); err != nil {
			return files, fmt.Errorf("make memory of pages of %d bytes: %w", page, err)
		}
	}
	return files, nil
}

// memory is one part of the guest's memory. What is set aside for it is taken at
// once: a guest that touched a page that is not there would be killed.
func memory(i int, bytes int64, at fleet.LayoutNode, file int) string {
	kind := "memory-backend-ram"
	pages := ""
	if at.PageBytes > 0 {
		kind = "memory-backend-file"
		pages = fmt.Sprintf(",mem-path=/proc/self/fd/%d,share=on,prealloc=on", file)
	}
	nodes := ""
	for _, n := range at.Hosts {
		nodes += fmt.Sprintf(",host-nodes=%d", n)
	}
	if nodes != "" {
		nodes += ",policy=bind"
	}
	return fmt.Sprintf("%s,id=node%d,size=%d%s%s", kind, i, bytes, nodes, pages)
}

// models are QEMU's names for CPUs of each level: qemu64 is the least that all
// have, and has what it lacks added.
var models = map[string]string{
	"x86-64-v1": "qemu64",
	"x86-64-v2": "qemu64,+cx16,+lahf-lm,+popcnt,+pni,+sse4.1,+sse4.2,+ssse3",
	"x86-64-v3": "qemu64,+cx16,+lahf-lm,+popcnt,+pni,+sse4.1,+sse4.2,+ssse3,+abm,+avx,+avx2,+bmi1,+bmi2,+f16c,+fma,+movbe,+xsave",
	"x86-64-v4": "qemu64,+cx16,+lahf-lm,+popcnt,+pni,+sse4.1,+sse4.2,+ssse3,+abm,+avx,+avx2,+bmi1,+bmi2,+f16c,+fma,+movbe,+xsave," +
		"+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl",
}

// Model is QEMU's name for CPUs of a level; empty: it has none.
func Model(level string) string { return models[level] }

// Pin keeps each CPU of a guest where the layout says, and all other threads of
// its QEMU where the rest is. Ask is a command to QEMU's monitor and where the
// answer goes. After an error some may be pinned.
func (g *Guest) Pin(ctx context.Context, pid int, ask func(ctx context.Context, command string, args, out any) error) error {
	if g == nil || len(g.Layout.Pins) == 0 {
		return nil
	}
	l := g.Layout
	var cpus []struct {
		Index  int `json:"cpu-index"`
		Thread int `json:"thread-id"`
	}
	if err := ask(ctx, "query-cpus-fast", nil, &cpus); err != nil {
		return err
	}
	of := map[int][]int{}
	for _, c := range cpus {
		if c.Index < 0 || c.Index >= len(l.Pins) {
			return fmt.Errorf("qemu has a CPU %d, and the guest has %d", c.Index, len(l.Pins))
		}
		of[c.Thread] = l.Pins[c.Index]
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return err
	}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		to, isCPU := of[id]
		if !isCPU {
			to = l.Rest
		}
		if err := keep(id, to); err != nil {
			return fmt.Errorf("keep thread %d of qemu on CPUs %s: %w", id, strings.Trim(fmt.Sprint(to), "[]"), err)
		}
	}
	return nil
}

// keep lets a thread run on these CPUs only. None means anywhere. A thread that
// has ended needs no place.
func keep(thread int, cpus []int) error {
	if len(cpus) == 0 {
		return nil
	}
	var set unix.CPUSet
	for _, c := range cpus {
		set.Set(c)
	}
	if err := unix.SchedSetaffinity(thread, &set); !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}
