// This file configures a guest's shape and memory placement in QEMU, and pins its CPUs.
//
// It must not know why. Its tests pin threads of the test; package qemu's tests check
// from inside a guest.

package qemu

import (
	"cmp"
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
	"pagurus/internal/thread"
)

// tunedGuest is a guest with a shape on one host; nil: no shape.
type tunedGuest struct {
	Shape       fleet.Shape
	Layout      fleet.Layout
	MemoryBytes int64 // in whole MiB
	More        int64 // added to each memory region's size
}

// Small drops the huge pages, with a note: some emulated guests have odd memory sizes,
// which huge pages do not allow (see Loses).
func (g *tunedGuest) Small() {
	for i, n := range g.Layout.Nodes {
		if n.PageBytes > 0 {
			g.small(i, "this QEMU moves its memory only in odd sizes, since it is emulated")
		}
	}
}

// small drops the huge pages of a node, with a reason. It copies the layout, which is
// shared.
func (g *tunedGuest) small(i int, why string) {
	g.Layout.Nodes = slices.Clone(g.Layout.Nodes)
	g.Layout.Nodes[i].PageBytes = 0
	g.Layout.Notes = append(slices.Clone(g.Layout.Notes), fmt.Sprintf("node %d of the guest has no huge pages: %s", i, why))
}

// At returns where the guest's parts are. It returns nil for a guest without a shape.
func (g *tunedGuest) At() *fleet.Layout {
	if g == nil {
		return nil
	}
	return &g.Layout
}

// Args returns QEMU's -smp and its arguments for nodes and huge pages; -m must be Bytes. Both
// sides of a migration get the same names and sizes; the host's pages and nodes may differ.
// first is QEMU's descriptor of the first of Reserve's files.
func (g *tunedGuest) Args(first int) []string {
	s, l := g.Shape, g.Layout
	out := []string{"-smp", fmt.Sprintf("%d,sockets=%d,cores=%d,threads=%d", s.Sockets*s.Cores*s.Threads, s.Sockets, s.Cores, s.Threads)}
	part := func(i int) fleet.LayoutNode {
		if i < len(l.Nodes) {
			return l.Nodes[i]
		}
		return fleet.LayoutNode{}
	}
	for i, bytes := range g.sizes() {
		out = append(out, "-object", memoryArgument(i, bytes, part(i), first))
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

// sizes are the sizes of the guest's memory by node; one without nodes.
func (g *tunedGuest) sizes() (all []int64) {
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

// Bytes returns the total memory.
func (g *tunedGuest) Bytes() (sum int64) {
	for _, n := range g.sizes() {
		sum += n
	}
	return sum
}

// Reserve makes files in the layout's huge pages, in the order of its nodes, and allocates the
// pages. QEMU inherits the files, because it may not make such large ones itself; then the
// caller can close them. Reserve drops pages that are not available from the layout, whatever
// was promised: a slower guest is better than none. So call it before Args.
func (g *tunedGuest) Reserve() (files []*os.File) {
	if g == nil {
		return nil
	}
	for i, bytes := range g.sizes() {
		if i >= len(g.Layout.Nodes) || g.Layout.Nodes[i].PageBytes == 0 {
			continue
		}
		f, err := pages(fmt.Sprintf("node%d", i), bytes, g.Layout.Nodes[i])
		if err != nil {
			g.small(i, err.Error())
			continue
		}
		files = append(files, f)
	}
	return files
}

// pages makes a file of allocated huge pages.
func pages(name string, bytes int64, at fleet.LayoutNode) (*os.File, error) {
	page := at.PageBytes
	// The flags contain the logarithm of the page size.
	flags := unix.MFD_CLOEXEC | unix.MFD_HUGETLB | bits.TrailingZeros64(uint64(page))<<unix.MFD_HUGE_SHIFT
	fd, err := unix.MemfdCreate(name, flags)
	if err != nil {
		return nil, fmt.Errorf("make memory of pages of %d KiB: %w", page>>10, err)
	}
	f := os.NewFile(uintptr(fd), name)
	size := (bytes + page - 1) / page * page
	if err = f.Truncate(size); err == nil {
		err = thread.Own(func() error { return preallocate(fd, size, at.Hosts) })
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("take %d pages of %d KiB: %w", size/page, page>>10, err)
	}
	return f, nil
}

// bind is the kernel's MPOL_BIND.
const bind = 2

// preallocate allocates all pages of a file, from these nodes if any. It changes its
// thread's memory policy, because QEMU only binds later allocations.
func preallocate(fd int, size int64, nodes []int) error {
	if len(nodes) > 0 {
		var set unix.CPUSet // the set holds node numbers here
		for _, n := range nodes {
			set.Set(n)
		}
		if err := unix.SetMemPolicy(bind, &set); err != nil && !errors.Is(err, unix.ENOSYS) { // ENOSYS: a kernel without NUMA
			return err
		}
	}
	for {
		// After a signal some pages are allocated, which the next call skips.
		if err := unix.Fallocate(fd, 0, 0, size); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// memoryArgument is one memory region. Its reserved pages are allocated at once, because
// touching a missing page would kill the guest.
func memoryArgument(i int, bytes int64, at fleet.LayoutNode, file int) string {
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

// models are QEMU's CPU models for each level: qemu64 is the common minimum, with missing
// features added.
var models = map[string]string{
	"x86-64-v1": "qemu64",
	"x86-64-v2": "qemu64,+cx16,+lahf-lm,+popcnt,+pni,+sse4.1,+sse4.2,+ssse3",
	"x86-64-v3": "qemu64,+cx16,+lahf-lm,+popcnt,+pni,+sse4.1,+sse4.2,+ssse3,+abm,+avx,+avx2,+bmi1,+bmi2,+f16c,+fma,+movbe,+xsave",
	"x86-64-v4": "qemu64,+cx16,+lahf-lm,+popcnt,+pni,+sse4.1,+sse4.2,+ssse3,+abm,+avx,+avx2,+bmi1,+bmi2,+f16c,+fma,+movbe,+xsave," +
		"+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl",
}

// modelOf is QEMU's CPU model for a level, or for what is QEMU's already.
func modelOf(cpu string) string { return cmp.Or(models[cpu], cpu) }

// tunedModel is QEMU's CPU model for a level; empty: none.
func tunedModel(level string) string { return models[level] }

// keeps reports whether the guest keeps its CPUs also while they are idle: the host then does not see that they are, and lends them to nobody.
// So each is pinned to a CPU of its own, among those that are kept for such guests, and the guest's other threads are elsewhere. Only then Linux hands
// a timer over without stopping the guest (KVM's pi_inject_timer, kvm_can_post_timer_interrupt in arch/x86/kvm/lapic.c). The guest sees no difference: QEMU adds
// MONITOR to the model "host" alone, which has no level.
func (g *tunedGuest) keeps(kept fleet.CPUSet) bool {
	if g.Shape.CPU == "" || len(g.Layout.Pins) == 0 {
		return false
	}
	var own fleet.CPUSet
	for _, p := range g.Layout.Pins {
		if len(p) != 1 || !kept.Has(p[0]) || own.Has(p[0]) {
			return false
		}
		own = append(own, p[0])
		slices.Sort(own)
	}
	return !slices.ContainsFunc(g.Layout.Rest, own.Has)
}

// Pin pins a guest's CPUs to those of the layout, and all other threads of QEMU to the rest.
// ask sends a command to QEMU's monitor. After an error some threads may be pinned.
func (g *tunedGuest) Pin(ctx context.Context, pid int, ask func(ctx context.Context, command string, args, out any) error) error {
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
	// Repeats until no new thread appears: a thread that was not pinned yet may have made
	// one.
	for seen, more := map[int]bool{}, true; more; {
		more = false
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return err
		}
		for _, t := range threads {
			id, err := strconv.Atoi(t.Name())
			if err != nil || seen[id] {
				continue
			}
			seen[id], more = true, true
			to, isCPU := of[innerThread(pid, id)]
			if !isCPU {
				to = l.Rest
			}
			if err := keepThread(id, to); err != nil {
				return fmt.Errorf("keep thread %d of qemu on CPUs %s: %w", id, strings.Trim(fmt.Sprint(to), "[]"), err)
			}
		}
	}
	return nil
}

// innerThread returns the number by which a process itself knows one of its threads: it may count
// processes on its own. It is 0 if the thread has ended.
func innerThread(pid, id int) (inner int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", pid, id))
	for line := range strings.Lines(string(text)) {
		if numbers, is := strings.CutPrefix(line, "NSpid:"); is {
			for _, n := range strings.Fields(numbers) { // the innermost is the last
				inner, _ = strconv.Atoi(n)
			}
		}
	}
	return inner
}

// keepThread restricts a thread to these CPUs; none: no restriction. It is not an error if the
// thread has ended.
func keepThread(thread int, cpus []int) error {
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
