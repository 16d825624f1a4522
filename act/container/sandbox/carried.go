package sandbox

import "golang.org/x/sys/unix"

// A program may only set state that a move carries. Other calls fail as on a kernel without
// them, so that programs do without them. After a move such state would silently be lost,
// because most of it can be neither read nor set from outside. A test of the driver makes each
// of these calls.

// answerOf returns the filter result that fails a call with an error.
func answerOf(err unix.Errno) uint32 { return answerErrno | uint32(err) }

// choice is a system call with some uses that are refused. It says which values one of its
// arguments must have, must not have, or which bits it must lack.
type choice struct {
	call     uintptr
	argument int
	among    []uint32 // nil: never or lack applies
	never    []uint32 // nil: lack applies
	lack     uint32
	wrong    unix.Errno
}

// Constants of prctl(2), arch_prctl(2) and memory policies that x/sys lacks.
const (
	prGetMemoryMerge = 68
	prGetAuxv        = 0x41555856
	archGetPerm      = 0x1022 // for registers that must be requested
	archGetSupported = 0x1021
	archMapVDSO      = 0x2001 // to 0x2003; CRIU uses them to make processes
	archShadowStatus = 0x5005
	policyDefault    = 0
	policyLocal      = 4
	futureMappings   = unix.MCL_FUTURE | unix.MCL_ONFAULT
	mapDroppable     = 0x08 // since Linux 6.11
	guardInstall     = 102  // MADV_GUARD_INSTALL, since Linux 6.13
)

// processOptions lists the options of prctl(2) whose state is carried, or that only read.
var processOptions = []uint32{
	unix.PR_SET_PDEATHSIG, unix.PR_GET_PDEATHSIG, unix.PR_GET_DUMPABLE, unix.PR_SET_DUMPABLE, unix.PR_GET_KEEPCAPS, unix.PR_SET_KEEPCAPS,
	unix.PR_SET_NAME, unix.PR_GET_NAME, unix.PR_GET_SECCOMP, unix.PR_SET_SECCOMP, unix.PR_CAPBSET_READ, unix.PR_CAPBSET_DROP, unix.PR_GET_TSC,
	unix.PR_GET_SECUREBITS, unix.PR_SET_SECUREBITS, unix.PR_SET_TIMERSLACK, unix.PR_GET_TIMERSLACK, unix.PR_GET_TIMING,
	unix.PR_TASK_PERF_EVENTS_DISABLE, unix.PR_TASK_PERF_EVENTS_ENABLE, unix.PR_MCE_KILL_GET, unix.PR_SET_CHILD_SUBREAPER, unix.PR_GET_CHILD_SUBREAPER,
	unix.PR_SET_NO_NEW_PRIVS, unix.PR_GET_NO_NEW_PRIVS, unix.PR_GET_TID_ADDRESS, unix.PR_SET_THP_DISABLE, unix.PR_GET_THP_DISABLE,
	unix.PR_CAP_AMBIENT, unix.PR_GET_SPECULATION_CTRL, unix.PR_GET_IO_FLUSHER, unix.PR_GET_MDWE, prGetMemoryMerge, prGetAuxv,
}

var choices = []choice{
	// An older kernel, to which the container may move, makes no such memory. Libraries make some
	// where they can: the C library for the state of getrandom and at the ends of threads' stacks.
	{call: unix.SYS_MMAP, argument: 3, lack: mapDroppable, wrong: unix.EINVAL},
	{call: unix.SYS_MADVISE, argument: 2, never: []uint32{guardInstall}, wrong: unix.EINVAL},
	// CRIU does not know the flags in its third argument.
	{call: unix.SYS_PRCTL, argument: 0, among: processOptions, wrong: unix.EINVAL},
	{call: unix.SYS_MLOCKALL, argument: 0, lack: futureMappings, wrong: unix.EPERM},
	{call: unix.SYS_MLOCK2, argument: 2, among: []uint32{0}, wrong: unix.EINVAL},
	{call: unix.SYS_MBIND, argument: 2, among: []uint32{policyDefault, policyLocal}, wrong: unix.EPERM},
	// Nothing outside the process shows its requests for notifications about a folder, and
	// copying a file breaks its leases.
	{call: unix.SYS_FCNTL, argument: 1, never: []uint32{unix.F_NOTIFY, unix.F_SETLEASE}, wrong: unix.EINVAL},
}

// unknown lists calls that are always refused. Landlock's rules would be lost in a move. The
// others make memory and registers that CRIU does not know.
var unknown = []uintptr{
	unix.SYS_LANDLOCK_CREATE_RULESET, unix.SYS_LANDLOCK_ADD_RULE, unix.SYS_LANDLOCK_RESTRICT_SELF,
	unix.SYS_MEMFD_SECRET, unix.SYS_SET_MEMPOLICY_HOME_NODE, unix.SYS_MSEAL, unix.SYS_LSM_SET_SELF_ATTR,
}

// onlyCarried is the part of the filter that refuses them. The call's number is loaded before
// it, and after it if the call is allowed.
func onlyCarried() []unix.SockFilter {
	var p []unix.SockFilter
	for _, c := range append(choices, machineChoices...) {
		p = append(p, c.filter()...)
	}
	for _, call := range append(unknown, machineUnknown...) {
		p = append(p, jump(unix.BPF_JEQ, uint32(call), 0, 1), answer(answerOf(unix.ENOSYS)))
	}
	return p
}

// filter makes the instructions for one choice. For other calls it leaves the number loaded.
func (c choice) filter() []unix.SockFilter {
	body := []unix.SockFilter{load(atArgument + 8*uint32(c.argument))}
	switch {
	case c.never != nil:
		for _, value := range c.never {
			body = append(body, jump(unix.BPF_JEQ, value, 0, 1), answer(answerOf(c.wrong)))
		}
		body = append(body, answer(answerAllow))
	case c.among == nil:
		body = append(body, jump(unix.BPF_JSET, c.lack, 0, 1), answer(answerOf(c.wrong)), answer(answerAllow))
	default:
		for _, value := range c.among {
			right := []unix.SockFilter{answer(answerAllow)}
			if c.call == unix.SYS_PRCTL && value == unix.PR_SET_THP_DISABLE {
				right = []unix.SockFilter{load(atArgument + 8*2), jump(unix.BPF_JEQ, 0, 1, 0), answer(answerOf(c.wrong)), answer(answerAllow)}
			}
			body = append(append(body, jump(unix.BPF_JEQ, value, 0, len(right))), right...)
		}
		body = append(body, answer(answerOf(c.wrong)))
	}
	return append([]unix.SockFilter{jump(unix.BPF_JEQ, uint32(c.call), 0, len(body))}, body...)
}
