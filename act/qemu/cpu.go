// This file chooses the processor that guests see. It must not know a guest's other
// properties. The tests of package qemu cover it, with real guests.

package qemu

import (
	"os"
	"strings"
)

// emulation is the accelerator for software emulation.
const emulation = "tcg"

// emulatedCPU has x86-64-v2 and AVX, is the same in every version of QEMU, and is cheaper
// to emulate than all features ("max"). It needs AVX: Open MPI loads Debian's libpsm2,
// which sometimes uses AVX at its start without checking.
const emulatedCPU = "SandyBridge-v1"

// acceleratorArgument is QEMU's argument for the accelerator.
func acceleratorArgument(name string) string {
	if name == emulation {
		return "tcg,thread=multi"
	}
	return name
}

// acceleratorCPU is QEMU's CPU argument. It omits features that only some versions
// emulate, and adds the name that tells the guest agent about emulation.
func acceleratorCPU(accelerator string) string {
	if accelerator == emulation {
		return emulatedCPU + ",-x2apic,-tsc-deadline,model-id=QEMU TCG CPU"
	}
	return "host"
}

// virtualization is the CPU's flag for hardware virtualization, if it has one.
func virtualization() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, flags, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "flags" {
			for _, flag := range strings.Fields(flags) {
				if flag == "vmx" || flag == "svm" {
					return " with " + flag
				}
			}
			return ""
		}
	}
	return ""
}

// cpuSeen names the CPU that guests see: "host" means this machine's.
func cpuSeen(accelerator string) string {
	if accelerator == emulation {
		return emulatedCPU
	}
	text, _ := os.ReadFile("/proc/cpuinfo") // if unreadable, all such hosts count as alike
	for line := range strings.Lines(string(text)) {
		if name, model, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(model)
		}
	}
	return "host"
}
