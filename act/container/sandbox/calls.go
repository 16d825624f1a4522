package sandbox

import (
	"fmt"
	"maps"
	"slices"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// A program of a container may make the calls that container engines allow by default, so programs
// that run there run here. Of those, a call that would make what no move carries does not exist
// (absent), and some uses of others are refused (choices). A call that takes a privilege fails as
// if that were missing (EPERM). Every other call fails as on a kernel without it (ENOSYS), so
// that programs and the C library do without it.

// newest is the last call of Linux 6.1, Debian 12's. Programs find no newer ones, so that
// a container can move to such a host: libraries ask once what the kernel has.
const newest = unix.SYS_SET_MEMPOLICY_HOME_NODE

// further lists calls that container engines allow only with privileges that affect other
// containers. Here a group of processors and memory limits each guest.
var further = []uintptr{unix.SYS_GET_MEMPOLICY, unix.SYS_SET_MEMPOLICY, unix.SYS_MOVE_PAGES}

// absent lists calls that container engines allow, and that do not exist here. A filter cannot see
// the flags of clone3: libraries use clone instead. Landlock's rules would be lost in a move. The
// others make memory and registers that CRIU does not know.
var absent = []uintptr{
	unix.SYS_CLONE3, unix.SYS_LANDLOCK_CREATE_RULESET, unix.SYS_LANDLOCK_ADD_RULE, unix.SYS_LANDLOCK_RESTRICT_SELF,
	unix.SYS_MEMFD_SECRET, unix.SYS_SET_MEMPOLICY_HOME_NODE, unix.SYS_URETPROBE,
}

// forbidden lists calls that take a privilege, beside those that the engines' profile gives with
// one. Most have been abused to break out.
var forbidden = []uintptr{
	unix.SYS_PIVOT_ROOT, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_USERFAULTFD,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
}

// verdicts returns a filter's answer to each call up to the newest, by its number. For a choice
// it does not count.
func verdicts() ([]uint32, error) {
	rights := &specs.LinuxCapabilities{Bounding: slices.Sorted(maps.Keys(kept))}
	engines, err := seccomp.GetDefaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: rights}})
	if err != nil {
		return nil, fmt.Errorf("list the system calls that programs may make: %w", err)
	}
	out := slices.Repeat([]uint32{answerOf(unix.ENOSYS)}, newest+1)
	set := func(verdict uint32, calls ...uintptr) {
		for _, call := range calls {
			if call < uintptr(len(out)) {
				out[call] = verdict
			}
		}
	}
	for _, rule := range seccomp.DefaultProfile().Syscalls {
		if rule.Includes != nil && len(rule.Includes.Caps) > 0 {
			set(answerOf(unix.EPERM), numbers(rule.Names)...)
		}
	}
	for _, rule := range engines.Syscalls {
		if rule.Action == specs.ActAllow && len(rule.Args) == 0 {
			set(answerAllow, numbers(rule.Names)...)
		}
	}
	set(answerAllow, further...)
	set(answerOf(unix.EPERM), forbidden...)
	set(answerOf(unix.ENOSYS), slices.Concat(absent, machineAbsent)...)
	return out, nil
}

// numbers returns the numbers of those calls that this machine has.
func numbers(names []string) (out []uintptr) {
	for _, name := range names {
		if n, ok := machineCalls.SyscallNames[name]; ok {
			out = append(out, uintptr(n))
		}
	}
	return out
}
