package sandbox

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data.
const (
	atCall         = 0
	atArchitecture = 4
	atArgument     = 16 // the first argument's lower half
)

// Results of a filter, from linux/seccomp.h.
const (
	answerAllow = 0x7fff0000
	answerKill  = 0x80000000
	answerErrno = 0x00050000
)

// newNamespaces are the flags of clone(2) that make namespaces.
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP

// forbid makes the kernel refuse the forbidden calls to this thread and its descendants. They
// fail as if a privilege were missing (EPERM), which programs can handle. clone3 fails as on an
// older kernel (ENOSYS), so that libraries use clone: a filter cannot see the flags of clone3.
func forbid() error {
	filter := program()
	fprog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&fprog)), 0, 0)
	runtime.KeepAlive(filter)
	if err != nil {
		return fmt.Errorf("have the kernel refuse system calls: %w", err)
	}
	return nil
}

// load, jump and answer make the instructions of a filter.
func load(at uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
}

func jump(how uint16, k uint32, yes, no int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | how | unix.BPF_K, Jt: uint8(yes), Jf: uint8(no), K: k}
}

func answer(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }

func program() []unix.SockFilter {
	denied := answer(answerOf(unix.EPERM))
	p := []unix.SockFilter{
		load(atArchitecture), jump(unix.BPF_JEQ, architecture, 1, 0), answer(answerKill),
		load(atCall), jump(unix.BPF_JGE, oldCalls, 0, 1), denied,
		jump(unix.BPF_JEQ, uint32(unix.SYS_CLONE3), 0, 1), answer(answerOf(unix.ENOSYS)),
		jump(unix.BPF_JEQ, uint32(unix.SYS_CLONE), 0, 4),
		load(atArgument), jump(unix.BPF_JSET, newNamespaces, 0, 1), denied, answer(answerAllow),
	}
	for _, call := range forbidden {
		p = append(p, jump(unix.BPF_JEQ, uint32(call), 0, 1), denied)
	}
	return append(append(p, onlyCarried()...), answer(answerAllow))
}
