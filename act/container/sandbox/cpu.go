package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Processor is what programs can see of a host's processors. A container's
// programs look once, when they start, and then use what they saw wherever they
// are: they may only go where nothing of it is missing, and there CRIU restores
// their registers.
type Processor struct {
	Level string   `json:"level"` // of the x86-64 psABI: "x86-64-v1" to "x86-64-v4"
	Flags []string `json:"flags"` // sets of instructions and registers, as in /proc/cpuinfo, sorted
}

// levels are what each level has beyond the one before it.
var levels = []struct {
	name  string
	flags []string
}{
	{"x86-64-v2", []string{"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"}},
	{"x86-64-v3", []string{"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}},
	{"x86-64-v4", []string{"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}},
}

// visible are flags that programs act upon, besides those that begin as
// visibleFamilies; all others are the kernel's business.
var (
	visible = []string{
		"abm", "adx", "aes", "bmi1", "bmi2", "cldemote", "clflush", "clflushopt", "clwb", "clzero", "cmov", "cx16", "cx8", "enqcmd", "erms",
		"f16c", "fma", "fma4", "fsgsbase", "fsrm", "fxsr", "gfni", "hle", "lahf_lm", "mmx", "mmxext", "movbe", "mpx", "movdir64b", "movdiri",
		"mwaitx", "ospke", "pclmulqdq", "pku", "pni", "popcnt", "rdpid", "rdpru", "rdrand", "rdseed", "rdtscp", "rtm", "serialize", "sm3",
		"sm4", "ssse3", "tbm", "tsc", "tsxldtrk", "user_shstk", "vaes", "vpclmulqdq", "waitpkg", "xgetbv1", "xop",
	}
	visibleFamilies = []string{"avx", "amx_", "sse", "sha", "3dnow", "xsave"}
)

// ReadProcessor tells what this host's processors have in common.
func ReadProcessor() (Processor, error) {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return Processor{}, fmt.Errorf("look at the processors: %w", err)
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
		return Processor{}, errors.New("look at the processors: /proc/cpuinfo names no flags")
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

// sets are those of registers that the kernel keeps for programs only where a processor
// has them, by a flag that says so.
var sets = []struct{ flag, name string }{{"avx", "AVX"}, {"avx512f", "AVX-512"}, {"amx_tile", "AMX"}, {"ospke", "protection keys"}, {"mpx", "MPX"}}

// Registers names, for people, the sets of registers that there are. Where one more or
// less is kept, the area is larger or smaller in which XSAVE puts them all; glibc asks
// for its size when a program starts, and goes by that for ever. So these have to be
// the same wherever a program goes. CRIU compares the area's size for the same reason,
// but only if it is told to.
func (p Processor) Registers() string {
	names := []string{"SSE"}
	for _, s := range sets {
		if slices.Contains(p.Flags, s.flag) {
			names = append(names, s.name)
		}
	}
	return "registers of " + strings.Join(names, ", ")
}

// missing gives what of want is not in have.
func missing(have, want []string) []string {
	var out []string
	for _, flag := range want {
		if !slices.Contains(have, flag) {
			out = append(out, flag)
		}
	}
	return out
}
