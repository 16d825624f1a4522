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

// forbid makes the kernel refuse to this thread and its descendants every call that program does
// not allow.
func forbid() error {
	filter, err := program()
	if err != nil {
		return err
	}
	fprog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	err = unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&fprog)), 0, 0)
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

// furthest is how far an instruction can jump.
const furthest = 255

func jump(how uint16, k uint32, yes, no int) unix.SockFilter {
	if yes > furthest || no > furthest {
		panic(fmt.Sprintf("a filter cannot jump over %d instructions", max(yes, no)))
	}
	return unix.SockFilter{Code: unix.BPF_JMP | how | unix.BPF_K, Jt: uint8(yes), Jf: uint8(no), K: k}
}

func answer(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }

// program makes the filter. Calls of which some uses are allowed come first, because the others
// cost nothing: the kernel tries a new filter with each number, remembers those that are allowed
// whatever their arguments are, and does not run the filter for them (Linux 5.11).
func program() ([]unix.SockFilter, error) {
	verdicts, err := verdicts()
	if err != nil {
		return nil, err
	}
	p := []unix.SockFilter{
		load(atArchitecture), jump(unix.BPF_JEQ, architecture, 1, 0), answer(answerKill),
		load(atCall), jump(unix.BPF_JGE, oldCalls, 0, 1), answer(answerOf(unix.EPERM)),
	}
	for _, c := range append(choices, machineChoices...) {
		p = append(p, c.filter()...)
	}
	for n, verdict := range verdicts {
		if n+1 == len(verdicts) || verdicts[n+1] != verdict {
			p = append(p, jump(unix.BPF_JGE, uint32(n+1), 1, 0), answer(verdict))
		}
	}
	return append(p, answer(answerOf(unix.ENOSYS))), nil
}
