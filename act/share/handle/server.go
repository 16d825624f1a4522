package handle

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// calls are what a file server needs of the kernel, beside threads: files, its network, memory, time. It cannot
// start a program or a process, load, trace or mount anything, or make a namespace.
var calls = []string{
	// Files.
	"access", "chdir", "chmod", "chown", "close", "close_range", "copy_file_range", "creat", "dup", "dup2", "dup3", "faccessat", "faccessat2", "fadvise64", "fallocate",
	"fchdir", "fchmod", "fchmodat", "fchown", "fcntl", "fdatasync", "fgetxattr", "flistxattr", "flock", "fremovexattr", "fsetxattr", "fstat", "fstatfs", "fsync",
	"ftruncate", "futimesat", "getcwd", "getdents", "getdents64", "getxattr", "ioctl", "lchown", "lgetxattr", "link", "listxattr", "llistxattr", "lremovexattr", "lseek",
	"lsetxattr", "lstat", "mkdir", "mkdirat", "mknod", "mknodat", "open", "openat", "openat2", "pread64", "preadv", "preadv2", "pwrite64", "pwritev",
	"pwritev2", "read", "readlink", "readv", "removexattr", "rename", "renameat", "renameat2", "rmdir", "setxattr", "splice", "stat", "statfs", "statx", "symlink",
	"symlinkat", "sync_file_range", "syncfs", "truncate", "umask", "unlink", "unlinkat", "utime", "utimensat", "utimes", "write", "writev",
	// Its network, and what it waits for.
	"accept", "accept4", "bind", "connect", "epoll_create", "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_pwait2", "epoll_wait", "eventfd", "eventfd2", "getpeername", "getsockname",
	"getsockopt", "listen", "pipe", "pipe2", "poll", "ppoll", "pselect6", "recvfrom", "recvmmsg", "recvmsg", "select", "sendmmsg", "sendmsg", "sendto", "setsockopt", "shutdown",
	"socketpair",
	// Memory, threads, signals, time.
	"arch_prctl", "brk", "clock_getres", "clock_gettime", "clock_nanosleep", "exit", "exit_group", "futex", "getcpu", "getitimer", "getpriority", "getrandom", "getrlimit", "getrusage", "gettid",
	"gettimeofday", "madvise", "membarrier", "mincore", "mmap", "mprotect", "mremap", "msync", "munmap", "nanosleep", "restart_syscall", "rseq", "rt_sigaction", "rt_sigpending",
	"rt_sigprocmask", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait", "sched_get_priority_max", "sched_get_priority_min", "sched_getaffinity", "sched_getparam", "sched_getscheduler",
	"sched_yield", "set_robust_list", "set_tid_address", "setitimer", "sigaltstack", "sysinfo", "tgkill", "time", "timer_create", "timer_delete", "timer_settime", "timerfd_create",
	"timerfd_settime", "times", "uname", "wait4",
	// Itself. As whom it acts is decided by what it may: only root's may become another user.
	"capget", "capset", "getegid", "geteuid", "getgid", "getgroups", "getpgrp", "getpid", "getppid", "getresgid", "getresuid", "getuid", "prctl", "prlimit64", "setfsgid", "setfsuid",
	"setgroups", "setresgid", "setresuid",
}

// brought are calls that the kernel brings to the guard. It lets the process become the server, and no other program.
var brought = []string{"execve", "name_to_handle_at", "open_by_handle_at", "readlinkat"}

// choice is a call whose answer depends on a bit of one of its arguments.
type choice struct {
	call     string
	argument uint32
	bit      uint32
	set      uint32 // the answer with the bit
	unset    uint32 // and without it
}

// choices: calls about a descriptor, which may be a stand-in, come to the guard, and a process may make threads, but no
// process.
var choices = []choice{
	{"newfstatat", 3, unix.AT_EMPTY_PATH, unix.SECCOMP_RET_USER_NOTIF, unix.SECCOMP_RET_ALLOW},
	{"fchownat", 4, unix.AT_EMPTY_PATH, unix.SECCOMP_RET_USER_NOTIF, unix.SECCOMP_RET_ALLOW},
	{"linkat", 4, unix.AT_EMPTY_PATH, unix.SECCOMP_RET_USER_NOTIF, unix.SECCOMP_RET_ALLOW},
	{"clone", 0, unix.CLONE_THREAD, unix.SECCOMP_RET_ALLOW, refused},
	// The filter cannot see the flags of clone3. Without it, the C library makes threads by clone.
	{"clone3", 0, 0, absent, absent},
}

// families are the kinds of its sockets. The kernel's answers to questions about the network, and nothing else of
// it, come through a socket of kind AF_NETLINK, whose protocol NETLINK_ROUTE is.
var families = []uint32{unix.AF_INET, unix.AF_INET6}

// Answers of the filter with an error.
const (
	otherFamily = unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)

	refused = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	absent  = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
)

// Offsets in struct seccomp_data.
const (
	atCall         = 0
	atArchitecture = 4
	atArgument     = 16 // the first argument's lower half
	argumentBytes  = 8
)

// filter is the server's filter of system calls.
func filter() ([]unix.SockFilter, error) {
	machine, err := arch.GetInfo("")
	if err != nil {
		return nil, fmt.Errorf("make the filter of the server's system calls: %w", err)
	}
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: atArchitecture, Size: 4}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(machine.ID), SkipTrue: 1}, bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS},
		bpf.LoadAbsolute{Off: atCall, Size: 4}, bpf.JumpIf{Cond: bpf.JumpLessThan, Val: uint32(arch.X32.SeccompMask), SkipTrue: 1}, bpf.RetConstant{Val: absent},
	}
	number := func(name string) uint32 {
		n, known := machine.SyscallNames[name]
		if !known {
			return ^uint32(0) // another kind of machine lacks some, and no call has this number
		}
		return uint32(n)
	}
	for _, c := range choices {
		program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: number(c.call), SkipTrue: 4},
			bpf.LoadAbsolute{Off: atArgument + argumentBytes*c.argument, Size: 4}, bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: c.bit, SkipFalse: 1}, bpf.RetConstant{Val: c.set}, bpf.RetConstant{Val: c.unset})
	}
	program = append(program, sockets(number("socket"))...)
	for answer, names := range map[uint32][]string{unix.SECCOMP_RET_USER_NOTIF: brought, unix.SECCOMP_RET_ALLOW: calls} {
		for _, name := range names {
			program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: number(name), SkipTrue: 1}, bpf.RetConstant{Val: answer})
		}
	}
	raw, err := bpf.Assemble(append(program, bpf.RetConstant{Val: refused}))
	if err != nil {
		return nil, fmt.Errorf("make the filter of the server's system calls: %w", err)
	}
	out := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		out[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return out, nil
}

// sockets is the part of the filter for the call that makes a socket.
func sockets(number uint32) []bpf.Instruction {
	family, protocol := bpf.LoadAbsolute{Off: atArgument, Size: 4}, bpf.LoadAbsolute{Off: atArgument + 2*argumentBytes, Size: 4}
	body := []bpf.Instruction{family}
	for _, f := range families {
		body = append(body, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: f, SkipTrue: 1}, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW})
	}
	body = append(body, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.AF_NETLINK, SkipTrue: 3}, protocol,
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.NETLINK_ROUTE, SkipTrue: 1}, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}, bpf.RetConstant{Val: otherFamily})
	return append([]bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: number, SkipTrue: uint8(len(body))}}, body...)
}

// serve takes the filter on this process, gives the guard the end at which its calls arrive, and
// becomes the server.
func serve(program []string) error {
	runtime.LockOSThread() // the filter is the thread's that becomes the server
	filter, err := filter()
	if err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil { // without it only root may have a filter
		return fmt.Errorf("refuse new rights: %w", err)
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	listener, err := listen(&prog)
	runtime.KeepAlive(filter)
	if err != nil {
		return fmt.Errorf("have the kernel filter its system calls: %w", err)
	}
	if err := unix.Sendmsg(toGuard, []byte{0}, unix.UnixRights(listener), nil, 0); err != nil {
		return fmt.Errorf("give its system calls to the guard: %w", err)
	}
	for _, fd := range []int{listener, toGuard} {
		if err := unix.Close(fd); err != nil {
			return err
		}
	}
	unix.Umask(0) // the server sets the modes of files that it makes
	return fmt.Errorf("run %s: %w", program[0], syscall.Exec(program[0], program, os.Environ()))
}

// listen takes the filter on this thread, and returns the end at which its calls arrive. Since Linux 5.19 no signal
// interrupts a call that the guard makes. On older kernels such a call is made twice.
func listen(prog *unix.SockFprog) (int, error) {
	filtered := func(flags uintptr) (int, unix.Errno) {
		fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|flags, uintptr(unsafe.Pointer(prog)))
		return int(fd), errno
	}
	fd, errno := filtered(unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
	if errno == unix.EINVAL {
		fd, errno = filtered(0)
	}
	if errno != 0 {
		return -1, errno
	}
	return fd, nil
}
