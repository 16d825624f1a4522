package fleet

import (
	"strings"
	"testing"
)

func TestCPUs(t *testing.T) {
	for _, good := range []string{
		"", HostCPU, "x86-64-v2", "x86-64-v4", "qemu64,-x2apic,-smep,-smap,-umip,-xsaves", "EPYC-Rome-v2", "host,-avx512f", "Skylake-Server,hle=off,rtm=off", "qemu64,+sse4.1",
	} {
		if reason := RefusedCPU(good); reason != "" {
			t.Errorf("%q: %s", good, reason)
		}
	}
	for bad, why := range map[string]string{
		"x86-64-v5": "no level", "x86-64-v3,-avx": "write a model", "qemu64,model-id=a b": "is no CPU", "-help": "is no CPU", "qemu64,,": "is no CPU",
		"qemu64 -S": "is no CPU", "qemu64,-x,enforce": "is no CPU", "qemu64\n": "is no CPU", "a" + strings.Repeat(",-x", 400): "is no CPU",
	} {
		if reason := RefusedCPU(bad); !strings.Contains(reason, why) {
			t.Errorf("%q: %q, want %q", bad, reason, why)
		}
	}
	for cpu, own := range map[string]bool{"": true, HostCPU: true, "host,-avx": true, "max": true, "x86-64-v2": false, "qemu64,-x2apic": false} {
		if OwnProcessor(cpu) != own {
			t.Errorf("%q is of its host's processor: %v", cpu, !own)
		}
	}
}

func TestLevelsOfCPUs(t *testing.T) {
	two, three := Topology{Level: "x86-64-v2"}, Topology{Level: "x86-64-v3"}
	for want, of := range map[string][]Topology{"x86-64-v2": {three, two, three}, "x86-64-v3": {three}} {
		if got := CommonCPU(of); got != want {
			t.Errorf("of %v: %q", of, got)
		}
	}
	if CommonCPU(nil) != "" || CommonCPU([]Topology{two, {}}) != "" {
		t.Error("a level is common of which one does not report its own")
	}
	if !three.HasCPU("x86-64-v2") || two.HasCPU("x86-64-v3") || !(Topology{}).HasCPU("") || (Topology{}).HasCPU("x86-64-v1") || three.HasCPU(HostCPU) {
		t.Error("what a host's processor has is wrong")
	}
	for cpu, want := range map[string]bool{"": true, "x86-64-v2": true, "x86-64-v4": true, HostCPU: true, "x86-64-v1": false, "EPYC": false, "x86-64-v5": false} {
		if reason := (Rules{CPU: cpu}).Refused(); (reason == "") != want {
			t.Errorf("a cluster with %q: %q", cpu, reason)
		}
	}
	with := func(can Abilities) Host { return Host{Facts: Facts{Abilities: map[Kind]Abilities{VM: can}}} }
	if !with(Abilities{Accelerator: KVM}).UsesKVM() || with(Abilities{Accelerator: KVM, Trouble: "no QEMU"}).UsesKVM() || with(Abilities{Accelerator: TCG}).UsesKVM() {
		t.Error("which hosts use KVM is wrong")
	}
}

func TestAcceleratorWords(t *testing.T) {
	for word, want := range map[string]string{"": "", AnyAccelerator: "", KVM: KVM, EmulationWord: TCG, TCG: TCG} {
		if got := AcceleratorOf(word); got != want || RefusedAccelerator(word) != "" {
			t.Errorf("%q: %q, %s", word, got, RefusedAccelerator(word))
		}
	}
	if RefusedAccelerator("hvf") == "" {
		t.Error("hvf is taken")
	}
}

func TestKernelWords(t *testing.T) {
	for _, good := range []string{"", "vsyscall=none nox2apic no-kvmapf clearcpuid=smep,smap", "nosmt", "tsc_khz=3"} {
		if reason := RefusedKernelWords(good); reason != "" {
			t.Errorf("%q: %s", good, reason)
		}
	}
	for bad, why := range map[string]string{
		"a\x00b": "the character '\\x00'", "a\nb": "the character '\\n'", "ü": "the character 'ü'", `a="b c"`: "the character '\"'",
		"console=ttyS1": "Pagurus's own", "quiet": "Pagurus's own", "nosmt init=/bin/sh": "Pagurus's own", "rdinit=/x": "Pagurus's own", "pagurus.warm": "Pagurus's own",
		"-- x": "Pagurus's own", strings.Repeat("x ", 600): "may have",
	} {
		if reason := RefusedKernelWords(bad); !strings.Contains(reason, why) {
			t.Errorf("%q: %q, want %q", bad, reason, why)
		}
	}
}
