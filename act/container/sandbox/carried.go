package sandbox

import "golang.org/x/sys/unix"

// A program may only set state that a move carries. Other calls fail as on a kernel without
// them, so that programs do without them. After a move such state would silently be lost,
// because most of it can be neither read nor set from outside. A test of the driver makes each
// of these calls.

// answerOf returns the filter result that fails a call with an error.
func answerOf(err unix.Errno) uint32 { return answerErrno | uint32(err) }

// choice is a system call with some uses that are refused. It says which values one of its
// arguments may have, must not have, or which bits it must lack. If among is all there is, other
// values are refused.
type choice struct {
	call     uintptr
	argument int
	within   []within // values for which another argument decides
	among    []uint32
	never    []uint32
	lack     uint32
	wrong    unix.Errno
}

// within is a value of an argument, and what another argument must then be.
type within struct {
	value uint32
	then  choice // its call does not count
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
	askPersonality   = 0xffffffff
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
	unix.PR_SET_NO_NEW_PRIVS, unix.PR_GET_NO_NEW_PRIVS, unix.PR_GET_TID_ADDRESS, unix.PR_GET_THP_DISABLE,
	unix.PR_CAP_AMBIENT, unix.PR_GET_SPECULATION_CTRL, unix.PR_GET_IO_FLUSHER, unix.PR_GET_MDWE, prGetMemoryMerge, prGetAuxv,
}

var choices = []choice{
	// An older kernel, to which the container may move, makes no such memory. Libraries make some
	// where they can: the C library for the state of getrandom and at the ends of threads' stacks.
	{call: unix.SYS_MMAP, argument: 3, lack: mapDroppable, wrong: unix.EINVAL},
	{call: unix.SYS_MADVISE, argument: 2, never: []uint32{guardInstall}, wrong: unix.EINVAL},
	// Namespaces are made from outside.
	{call: unix.SYS_CLONE, argument: 0, lack: newNamespaces, wrong: unix.EPERM},
	// CRIU does not know the flags in the third argument of the option for huge pages.
	{call: unix.SYS_PRCTL, argument: 0, wrong: unix.EINVAL, among: processOptions,
		within: []within{{unix.PR_SET_THP_DISABLE, choice{argument: 2, among: []uint32{0}, wrong: unix.EINVAL}}}},
	{call: unix.SYS_MLOCKALL, argument: 0, lack: futureMappings, wrong: unix.EPERM},
	{call: unix.SYS_MLOCK2, argument: 2, among: []uint32{0}, wrong: unix.EINVAL},
	{call: unix.SYS_MBIND, argument: 2, among: []uint32{policyDefault, policyLocal}, wrong: unix.EPERM},
	// Nothing outside the process shows its requests for notifications about a folder, and
	// copying a file breaks its leases.
	{call: unix.SYS_FCNTL, argument: 1, never: []uint32{unix.F_NOTIFY, unix.F_SETLEASE}, wrong: unix.EINVAL},
	// CRIU knows no sockets of other families and protocols. Some of those would have the kernel load
	// a module that nobody else uses, or reach other machines past the job's network (AF_VSOCK).
	// Packet and raw sockets take a capability.
	{call: unix.SYS_SOCKET, argument: 0, among: []uint32{unix.AF_UNIX, unix.AF_PACKET}, wrong: unix.EAFNOSUPPORT,
		within: []within{{unix.AF_INET, internet}, {unix.AF_INET6, internet}, {unix.AF_NETLINK, netlink}}},
	{call: unix.SYS_SOCKETPAIR, argument: 0, among: []uint32{unix.AF_UNIX}, wrong: unix.EAFNOSUPPORT},
	// What a program may not ask for makes memory executable or maps the first page.
	{call: unix.SYS_PERSONALITY, argument: 0, among: []uint32{askPersonality}, lack: ^uint32(personalities), wrong: unix.EPERM},
}

// internet are the protocols of Internet sockets that a move carries. For others a socket says
// that there are none.
var internet = choice{argument: 2, wrong: unix.EPROTONOSUPPORT, among: []uint32{
	unix.IPPROTO_IP, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_UDPLITE, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6, unix.IPPROTO_RAW, unix.IPPROTO_MPTCP,
}}

// netlink are the parts of the kernel that programs ask by netlink: about links and addresses, sockets
// and devices. Others take a privilege, or nobody in a container needs them. Whoever asks for a family of NETLINK_GENERIC has the kernel load
// the module that bears its name, without any privilege. The kernel loads what lists sockets (NETLINK_SOCK_DIAG) only
// for families and protocols that it has.
var netlink = choice{argument: 2, wrong: unix.EPROTONOSUPPORT, among: []uint32{
	unix.NETLINK_ROUTE, unix.NETLINK_SOCK_DIAG, unix.NETLINK_KOBJECT_UEVENT,
}}

// personalities are the bits of personality(2) that a program may set: Linux's own with 64 and
// with 32 bits, and flags for its addresses and for what it is told.
const personalities = 0x0008 | 0x0020000 | // PER_LINUX32, UNAME26
	0x0040000 | 0x0200000 | 0x8000000 | // ADDR_NO_RANDOMIZE, ADDR_COMPAT_LAYOUT, ADDR_LIMIT_3GB
	0x1000000 | 0x2000000 | 0x4000000 // SHORT_INODE, WHOLE_SECONDS, STICKY_TIMEOUTS

// newNamespaces are the flags of clone(2) that make namespaces.
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP

// filter makes the instructions for one choice. For other calls it leaves the number loaded.
func (c choice) filter() []unix.SockFilter {
	body := c.body()
	return append([]unix.SockFilter{jump(unix.BPF_JEQ, uint32(c.call), 0, len(body))}, body...)
}

// body makes the instructions that answer the call.
func (c choice) body() []unix.SockFilter {
	refused, body := answer(answerOf(c.wrong)), []unix.SockFilter{load(atArgument + 8*uint32(c.argument))}
	for _, w := range c.within {
		then := w.then.body()
		body = append(append(body, jump(unix.BPF_JEQ, w.value, 0, len(then))), then...)
	}
	for _, value := range c.among {
		body = append(body, jump(unix.BPF_JEQ, value, 0, 1), answer(answerAllow))
	}
	for _, value := range c.never {
		body = append(body, jump(unix.BPF_JEQ, value, 0, 1), refused)
	}
	switch {
	case c.lack != 0:
		return append(body, jump(unix.BPF_JSET, c.lack, 0, 1), refused, answer(answerAllow))
	case c.never != nil:
		return append(body, answer(answerAllow))
	default:
		return append(body, refused)
	}
}
