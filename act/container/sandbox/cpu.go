package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Processor describes the features of a host's processors that programs can see. A program
// examines them once, when it starts, and then uses them on every host. So it may only go to
// hosts that lack none of them, where CRIU can also restore its registers.
type Processor struct {
	Level string   `json:"level"` // of the x86-64 psABI: "x86-64-v1" to "x86-64-v4"
	Flags []string `json:"flags"` // sets of instructions and registers, as in /proc/cpuinfo, sorted
}

// levels lists the flags that each level adds to the one before it.
var levels = []struct {
	name  string
	flags []string
}{
	{"x86-64-v2", []string{"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"}},
	{"x86-64-v3", []string{"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}},
	{"x86-64-v4", []string{"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}},
}

// visible lists flags that programs use, besides those that begin with a word of
// visibleFamilies. Only the kernel uses the others.
var (
	visible = []string{
		"abm", "adx", "aes", "bmi1", "bmi2", "cldemote", "clflush", "clflushopt", "clwb", "clzero", "cmov", "cx16", "cx8", "enqcmd", "erms",
		"f16c", "fma", "fma4", "fsgsbase", "fsrm", "fxsr", "gfni", "hle", "lahf_lm", "mmx", "mmxext", "movbe", "mpx", "movdir64b", "movdiri",
		"mwaitx", "ospke", "pclmulqdq", "pku", "pni", "popcnt", "rdpid", "rdpru", "rdrand", "rdseed", "rdtscp", "rtm", "serialize", "sm3",
		"sm4", "ssse3", "tbm", "tsc", "tsxldtrk", "user_shstk", "vaes", "vpclmulqdq", "waitpkg", "xgetbv1", "xop",
	}
	visibleFamilies = []string{"avx", "amx_", "sse", "sha", "3dnow", "xsave"}
)

// ReadProcessor returns the features that all of this host's processors have.
func ReadProcessor() (Processor, error) {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return Processor{}, fmt.Errorf("read the processors: %w", err)
	}
	return parse(text)
}

func parse(text []byte) (Processor, error) {
	count := map[string]int{}
	processors := 0
	for line := range bytes.Lines(text) {
		key, value, ok := strings.Cut(string(line), ":")
		if !ok || strings.TrimSpace(key) != "flags" {
			continue
		}
		processors++
		flags := strings.Fields(value)
		slices.Sort(flags)
		for _, flag := range slices.Compact(flags) {
			count[flag]++
		}
	}
	if processors == 0 {
		return Processor{}, errors.New("read the processors: /proc/cpuinfo names no flags")
	}
	p := Processor{Level: "x86-64-v1"}
	for flag, n := range count {
		family := func(prefix string) bool { return strings.HasPrefix(flag, prefix) }
		if n == processors && (slices.Contains(visible, flag) || slices.ContainsFunc(visibleFamilies, family)) {
			p.Flags = append(p.Flags, flag)
		}
	}
	slices.Sort(p.Flags)
	for _, l := range levels {
		if len(missing(p.Flags, l.flags)) > 0 {
			break
		}
		p.Level = l.name
	}
	return p, nil
}

// sets lists register sets that the kernel saves only if a processor's flag announces them.
var sets = []struct{ flag, name string }{{"avx", "AVX"}, {"avx512f", "AVX-512"}, {"amx_tile", "AMX"}, {"ospke", "protection keys"}, {"mpx", "MPX"}}

// Registers names, for people, the register sets of the processor. Each set enlarges the area in
// which XSAVE stores all of them. glibc reads the area's size when a program starts and relies
// on it for ever. So the sets must be the same on every host of a program. CRIU compares the
// area's size for the same reason, but only if it is told to.
func (p Processor) Registers() string {
	names := []string{"SSE"}
	for _, s := range sets {
		if slices.Contains(p.Flags, s.flag) {
			names = append(names, s.name)
		}
	}
	return "registers of " + strings.Join(names, ", ")
}

// missing returns the elements of want that are not in have.
func missing(have, want []string) []string {
	var out []string
	for _, flag := range want {
		if !slices.Contains(have, flag) {
			out = append(out, flag)
		}
	}
	return out
}
