package sandbox

import (
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"
)

// Constants of this instruction set: its name for seccomp, and the first call number of an older
// convention.
const (
	architecture = 0xc000003e // AUDIT_ARCH_X86_64
	oldCalls     = 0x40000000 // of x32, whose calls have this bit
)

// machineChoices: CRIU does not restore registers that programs must request (AMX), or a shadow
// stack that a program requested.
var machineChoices = []choice{
	{call: unix.SYS_ARCH_PRCTL, argument: 0, among: []uint32{0x1001, 0x1002, 0x1003, 0x1004, 0x1011, archGetSupported, archGetPerm, archMapVDSO, archMapVDSO + 1, archMapVDSO + 2, archShadowStatus}, wrong: unix.EINVAL},
}

// machineAbsent: CRIU does not know a process's own segments.
var machineAbsent = []uintptr{unix.SYS_MODIFY_LDT}

// machineCalls has the numbers of calls by their names.
var machineCalls = arch.X86_64
