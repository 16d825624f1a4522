package fleet

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// HostCPU is the CPU of guests that see their host's processor.
const HostCPU = "host"

// CPULevels are the levels of CPUs, lowest first, as compilers name them.
var CPULevels = []string{"x86-64-v1", "x86-64-v2", "x86-64-v3", "x86-64-v4"}

// IsCPULevel reports whether a CPU is a level, which any host gives whose processor has it.
func IsCPULevel(cpu string) bool { return slices.Contains(CPULevels, cpu) }

// HasCPU reports whether a host's processor has a level.
func (t Topology) HasCPU(level string) bool {
	return level == "" || slices.Index(CPULevels, t.Level) >= slices.Index(CPULevels, level) && IsCPULevel(level)
}

// CommonCPU is the highest level that the processors of all hosts have; empty: one is not known.
func CommonCPU(hosts []Topology) string {
	least := len(CPULevels)
	for _, h := range hosts {
		least = min(least, slices.Index(CPULevels, h.Level))
	}
	if least < 0 || least == len(CPULevels) {
		return ""
	}
	return CPULevels[least]
}

// UsesKVM reports whether a host runs guests of a kind with KVM.
func (h Host) UsesKVM() bool {
	for _, can := range h.Facts.Abilities {
		if can.Trouble == "" && can.Accelerator == KVM {
			return true
		}
	}
	return false
}

// ChosenCPUs are what a cluster's rules may give virtual machines that start.
var ChosenCPUs = append(slices.Clone(CPULevels[1:]), HostCPU)

// OwnProcessor reports whether guests with a CPU see more or less of their host's processor, and so move only between equal ones.
func OwnProcessor(cpu string) bool {
	base, _, _ := strings.Cut(cpu, ",")
	return base == "" || base == HostCPU || base == "max"
}

var cpuForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}(,[+-][a-z0-9._-]{1,62}|,[a-z0-9._-]{1,62}=(on|off))*$`)

// mostCPU is the most that a CPU's name may be.
const mostCPU = 1024

// RefusedCPU says what is wrong with the CPU that guests are to see; empty: nothing, as for none. Which models there are only QEMU knows.
func RefusedCPU(cpu string) string {
	base, features, _ := strings.Cut(cpu, ",")
	switch {
	case cpu == "":
		return ""
	case len(cpu) > mostCPU || !cpuForm.MatchString(cpu):
		return fmt.Sprintf("%.80q is no CPU: write %s, %s, or a model of QEMU's with features, like EPYC-Rome or qemu64,-x2apic", cpu, HostCPU, strings.Join(CPULevels[1:], ", "))
	case strings.HasPrefix(base, "x86-64-") && !IsCPULevel(base):
		return fmt.Sprintf("there is no level %s: write one of %s", base, strings.Join(CPULevels, ", "))
	case IsCPULevel(base) && features != "":
		return fmt.Sprintf("%s is what all hosts of that level give, without %s: write a model of QEMU's, like qemu64,%s", base, features, features)
	}
	return ""
}
