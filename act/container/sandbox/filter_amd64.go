package sandbox

import "golang.org/x/sys/unix"

// Of this machine's instruction set: what seccomp calls it, what may be called
// by an older convention, and calls that only it has.
const (
	architecture = 0xc000003e // AUDIT_ARCH_X86_64
	oldCalls     = 0x40000000 // of x32, whose calls have this bit
)

// machineChoices: registers that have to be asked for (AMX) are not restored, nor is a
// shadow stack that a program asks for.
var machineChoices = []choice{
	{call: unix.SYS_ARCH_PRCTL, argument: 0, among: []uint32{0x1001, 0x1002, 0x1003, 0x1004, 0x1011, archGetSupported, archGetPerm, archMapVDSO, archMapVDSO + 1, archMapVDSO + 2, archShadowStatus}, wrong: unix.EINVAL},
}

// machineUnknown: segments of a process's own are not known to CRIU.
var machineUnknown = []uintptr{unix.SYS_MODIFY_LDT, unix.SYS_MAP_SHADOW_STACK}
