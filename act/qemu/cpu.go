// This file says what processor guests see.
//
// It must not know what else shapes a guest. Its tests are those of package
// qemu, with real guests.

package qemu

import (
	"os"
	"strings"
)

// emulation is the accelerator that is none.
const emulation = "tcg"

// emulatedCPU has x86-64-v2 and AVX, is the same in every version of QEMU, and
// costs less to emulate than all that QEMU can do ("max"). It cannot be less:
// Open MPI loads Debian's libpsm2, which uses AVX at its start, at times, without
// asking whether there is any.
const emulatedCPU = "SandyBridge-v1"

// acceleratorArgument is what QEMU is told to run guests by.
func acceleratorArgument(name string) string {
	if name == emulation {
		return "tcg,thread=multi"
	}
	return name
}

// acceleratorCPU is what QEMU is told. It leaves out what only some versions emulate, and
// adds the name by which the guest agent knows that it is emulated.
func acceleratorCPU(accelerator string) string {
	if accelerator == emulation {
		return emulatedCPU + ",-x2apic,-tsc-deadline,model-id=QEMU TCG CPU"
	}
	return "host"
}

// cpuSeen names what guests see: "host" means the processor of this machine.
func cpuSeen(accelerator string) string {
	if accelerator == emulation {
		return emulatedCPU
	}
	text, _ := os.ReadFile("/proc/cpuinfo") // unreadable: all such hosts are taken to be alike
	for line := range strings.Lines(string(text)) {
		if name, model, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(model)
		}
	}
	return "host"
}
