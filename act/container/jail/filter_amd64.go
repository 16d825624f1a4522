package jail

// Of this machine's instruction set: what seccomp calls it, what may be called
// by an older convention, and calls that only it has.
const (
	architecture = 0xc000003e // AUDIT_ARCH_X86_64
	oldCalls     = 0x40000000 // of x32, whose calls have this bit
)
