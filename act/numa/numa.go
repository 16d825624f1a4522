// Package numa reads this machine's topology of processors and memory from sysfs.
//
// It must not know the use of it. Its tests read this machine, and recordings of others.
package numa

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"pagurus/fleet"
)

// Read reads the topology below a root, "/" for this machine, without offline CPUs. A
// kernel without NUMA has one node.
func Read(root string) (fleet.Topology, error) {
	t, err := read(os.DirFS(root))
	if err != nil {
		return fleet.Topology{}, fmt.Errorf("read the machine's topology: %w", err)
	}
	return t, nil
}

const system = "sys/devices/system"

func read(at fs.FS) (t fleet.Topology, err error) {
	folders, err := fs.Glob(at, system+"/node/node[0-9]*")
	if err != nil {
		return t, err
	}
	for _, f := range folders {
		n, err := readNode(at, f)
		if err != nil {
			return t, err
		}
		t.Nodes = append(t.Nodes, n)
	}
	slices.SortFunc(t.Nodes, func(a, b fleet.Node) int { return a.ID - b.ID })
	if len(t.Nodes) == 0 {
		n, err := only(at)
		if err != nil {
			return t, err
		}
		t.Nodes = []fleet.Node{n}
	}
	info, err := fs.ReadFile(at, "proc/cpuinfo")
	if err == nil {
		t.Level = Level(flags(string(info)))
	}
	way, err := fs.ReadFile(at, "sys/kernel/mm/transparent_hugepage/enabled")
	t.Transparent = err == nil && !strings.Contains(string(way), "[never]")
	return t, nil
}

func readNode(at fs.FS, folder string) (n fleet.Node, err error) {
	if n.ID, err = strconv.Atoi(strings.TrimPrefix(filepath.Base(folder), "node")); err != nil {
		return n, err
	}
	cpus, err := list(at, folder+"/cpulist")
	if err != nil {
		return n, err
	}
	if n.Cores, err = cores(at, cpus); err != nil {
		return n, err
	}
	if n.MemoryBytes, err = memory(at, folder+"/meminfo"); err != nil {
		return n, err
	}
	distances, err := word(at, folder+"/distance")
	if err == nil {
		for _, w := range strings.Fields(distances) {
			d, err := strconv.Atoi(w)
			if err != nil {
				return n, fmt.Errorf("%s/distance: %w", folder, err)
			}
			n.Distances = append(n.Distances, d)
		}
	}
	n.Huge, err = huge(at, folder+"/hugepages")
	return n, err
}

// only is the node of a kernel without NUMA.
func only(at fs.FS) (n fleet.Node, err error) {
	cpus, err := list(at, system+"/cpu/online")
	if err != nil {
		return n, err
	}
	if n.Cores, err = cores(at, cpus); err != nil {
		return n, err
	}
	if n.MemoryBytes, err = memory(at, "proc/meminfo"); err != nil {
		return n, err
	}
	n.Huge, err = huge(at, "sys/kernel/mm/hugepages")
	return n, err
}

// cores groups CPUs by core.
func cores(at fs.FS, cpus []int) (all []fleet.Core, err error) {
	done := map[int]bool{}
	for _, c := range cpus {
		if done[c] {
			continue
		}
		folder := fmt.Sprintf("%s/cpu/cpu%d/topology", system, c)
		core := fleet.Core{CPUs: []int{c}}
		// Without data on cores each CPU is one.
		if siblings, err := list(at, folder+"/thread_siblings_list"); err == nil {
			core.CPUs = slices.DeleteFunc(siblings, func(s int) bool { return !slices.Contains(cpus, s) })
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if socket, err := word(at, folder+"/physical_package_id"); err == nil {
			if core.Socket, err = strconv.Atoi(socket); err != nil {
				return nil, fmt.Errorf("the socket of CPU %d: %w", c, err)
			}
		}
		if len(core.CPUs) == 0 {
			core.CPUs = []int{c}
		}
		for _, s := range core.CPUs {
			done[s] = true
		}
		all = append(all, core)
	}
	return all, nil
}

func huge(at fs.FS, folder string) (all []fleet.HugePages, err error) {
	folders, err := fs.Glob(at, folder+"/hugepages-*kB")
	if err != nil {
		return nil, err
	}
	for _, f := range folders {
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(f), "hugepages-"), "kB"), 10, 64)
		if err != nil {
			return nil, err
		}
		h := fleet.HugePages{SizeBytes: kib << 10}
		for name, into := range map[string]*int{"nr_hugepages": &h.Total, "free_hugepages": &h.Free} {
			text, err := word(at, f+"/"+name)
			if err == nil {
				*into, err = strconv.Atoi(text)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f, err)
			}
		}
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b fleet.HugePages) int { return int((b.SizeBytes - a.SizeBytes) >> 10) })
	return all, nil
}

func word(at fs.FS, path string) (string, error) {
	text, err := fs.ReadFile(at, path)
	return strings.TrimSpace(string(text)), err
}

// memory finds MemTotal.
func memory(at fs.FS, path string) (int64, error) {
	text, err := word(at, path)
	if err != nil {
		return 0, err
	}
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		words := strings.Fields(lines.Text())
		for i, w := range words {
			if w == "MemTotal:" && i+1 < len(words) {
				kib, err := strconv.ParseInt(words[i+1], 10, 64)
				return kib << 10, err
			}
		}
	}
	return 0, fmt.Errorf("%s does not say how much there is", path)
}

// list parses a list such as "0-3,8".
func list(at fs.FS, path string) ([]int, error) {
	text, err := word(at, path)
	if err != nil {
		return nil, err
	}
	all, err := fleet.ParseCPUs(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return all, nil
}

func flags(info string) []string {
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "flags" {
			return strings.Fields(value)
		}
	}
	return nil
}

// levels are those of the x86-64 psABI: each includes the earlier ones.
var levels = []struct {
	name  string
	needs []string
}{
	{"x86-64-v1", []string{"cmov", "cx8", "fpu", "fxsr", "mmx", "syscall", "sse", "sse2"}},
	{"x86-64-v2", []string{"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"}},
	{"x86-64-v3", []string{"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}},
	{"x86-64-v4", []string{"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}},
}

// Level is the highest level of the x86-64 psABI that a CPU with these flags of the
// kernel has; empty: none.
func Level(flags []string) (level string) {
	for _, l := range levels {
		for _, need := range l.needs {
			if !slices.Contains(flags, need) {
				return level
			}
		}
		level = l.name
	}
	return level
}
