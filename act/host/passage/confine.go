package passage

import (
	"fmt"
	"runtime"
	"syscall"

	"github.com/elastic/go-seccomp-bpf"
	"golang.org/x/sys/unix"
)

// calls are those that a relay makes: it carries bytes between descriptors that it has, and Go's
// runtime handles its threads and memory.
var calls = []string{
	"read", "write", "readv", "writev", "splice", "pipe2", "close", "fcntl", "shutdown", "accept4", "connect", "recvfrom", "sendto",
	"getsockopt", "setsockopt", "getsockname", "getpeername", "fstat", "epoll_create1", "epoll_ctl", "epoll_pwait", "eventfd2",
	"mmap", "munmap", "mprotect", "madvise", "brk", "futex", "nanosleep", "clock_nanosleep", "clock_gettime", "sched_yield", "sched_getaffinity",
	"sigaltstack", "rt_sigprocmask", "rt_sigaction", "rt_sigreturn", "set_robust_list", "rseq", "tgkill", "getpid", "gettid", "getrandom", "uname", "restart_syscall", "exit", "exit_group",
}

// confine makes this process a user who may do nothing else, with no privilege, for ever: it makes no network socket, no process, and opens no
// file but by a path alone (O_PATH), which QEMU's socket takes.
func confine(uid int) error {
	if err := syscall.Setgroups(nil); err != nil {
		return fmt.Errorf("leave root's groups: %w", err)
	}
	if err := syscall.Setresgid(uid, uid, uid); err != nil {
		return fmt.Errorf("become group %d: %w", uid, err)
	}
	if err := syscall.Setresuid(uid, uid, uid); err != nil { // the capabilities go with root
		return fmt.Errorf("become user %d: %w", uid, err)
	}
	some := []seccomp.NameWithConditions{
		{Name: "socket", Conditions: seccomp.ArgumentConditions{{Argument: 0, Operation: seccomp.Equal, Value: unix.AF_UNIX}}},
		{Name: "openat", Conditions: seccomp.ArgumentConditions{{Argument: 2, Operation: seccomp.BitsSet, Value: unix.O_PATH}}},
		{Name: "clone", Conditions: seccomp.ArgumentConditions{{Argument: 0, Operation: seccomp.BitsSet, Value: unix.CLONE_THREAD}}},
	}
	// A C library that may not make a thread by clone3, whose flags no filter sees, does so by clone if there is no clone3.
	absent := seccomp.ActionErrno | seccomp.Action(unix.ENOSYS)
	policy := seccomp.Policy{DefaultAction: seccomp.ActionErrno, Syscalls: []seccomp.SyscallGroup{
		{Action: absent, Names: []string{"clone3"}}, {Action: seccomp.ActionAllow, Names: calls}, {Action: seccomp.ActionAllow, NamesWithCondtions: some},
	}}
	// The filter's flag gives it, and the refusal of new privileges, to all threads.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := seccomp.LoadFilter(seccomp.Filter{NoNewPrivs: true, Flag: seccomp.FilterFlagTSync, Policy: policy}); err != nil {
		return fmt.Errorf("have the kernel refuse system calls: %w", err)
	}
	return nil
}
