package sandbox

import (
	"slices"
	"testing"
)

func TestParse(t *testing.T) {
	const old = "flags\t\t: fpu vme tsc cx8 cmov mmx sse sse2 ht syscall nx lm pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm"
	const new = old + " avx avx2 bmi1 bmi2 f16c fma abm movbe xsave xsaveopt avx512f avx512bw avx512cd avx512dq avx512vl amx_tile"
	for text, level := range map[string]string{
		"flags : tsc":                 "x86-64-v1",
		old:                           "x86-64-v2",
		new:                           "x86-64-v4",
		new + "\n\n" + old + "\nx: y": "x86-64-v2", // both kinds of core
	} {
		if p, err := parse([]byte(text)); err != nil || p.Level != level {
			t.Errorf("%q: %+v, %v", text, p, err)
		}
	}
	p, _ := parse([]byte(new))
	if !slices.Contains(p.Flags, "avx512f") || !slices.Contains(p.Flags, "amx_tile") || slices.Contains(p.Flags, "nx") {
		t.Errorf("of %s are visible %v", new, p.Flags)
	}
	before, _ := parse([]byte(old))
	if got, less := p.Registers(), before.Registers(); got != "registers of SSE, AVX, AVX-512, AMX" || less != "registers of SSE" {
		t.Errorf("there are %s, and before %s", got, less)
	}
	for _, text := range []string{"", "flags", "model name : x"} {
		if p, err := parse([]byte(text)); err == nil {
			t.Errorf("%q: %+v", text, p)
		}
	}
	if p, err := ReadProcessor(); err != nil || !slices.Contains(p.Flags, "sse2") {
		t.Errorf("this host has %+v, %v", p, err)
	}
}
