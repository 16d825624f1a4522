package sandbox

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"pagurus/internal/thread"
)

// run gives a filter's answer to a system call, as the kernel would.
func run(t *testing.T, p []unix.SockFilter, call uintptr, arguments ...uint32) uint32 {
	t.Helper()
	data := map[uint32]uint32{atCall: uint32(call), atArchitecture: architecture}
	for i, a := range arguments {
		data[atArgument+8*uint32(i)] = a
	}
	var loaded uint32
	for i := 0; i < len(p); i++ {
		s, met := p[i], false
		switch s.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			loaded = data[s.K]
			continue
		case unix.BPF_RET | unix.BPF_K:
			return s.K
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			met = loaded == s.K
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			met = loaded >= s.K
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			met = loaded&s.K != 0
		default:
			t.Fatalf("step %d has the code %x", i, s.Code)
		}
		if met {
			i += int(s.Jt)
		} else {
			i += int(s.Jf)
		}
	}
	t.Fatal("the filter has no end")
	return 0
}

func filter(t *testing.T) []unix.SockFilter {
	t.Helper()
	p, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestFilter: the kernel accepts a filter of this length, and no instruction leads beyond its end.
func TestFilter(t *testing.T) {
	p := filter(t)
	if len(p) > 4096 {
		t.Errorf("the filter has %d steps", len(p))
	}
	for i, step := range p {
		if step.Code&0x07 == unix.BPF_JMP && (i+1+int(step.Jt) >= len(p) || i+1+int(step.Jf) >= len(p)) {
			t.Errorf("step %d leads beyond the end", i)
		}
	}
}

// TestAnswers: what programs of jobs call is allowed whatever the arguments are, what takes a
// privilege lacks it, and what is newer, older or not for jobs does not exist.
func TestAnswers(t *testing.T) {
	p := filter(t)
	for want, calls := range map[uint32][]uintptr{
		answerAllow: {
			unix.SYS_READ, unix.SYS_WRITE, unix.SYS_OPENAT2, unix.SYS_EXECVE, unix.SYS_EXECVEAT, unix.SYS_FORK, unix.SYS_VFORK, unix.SYS_FUTEX, unix.SYS_FUTEX_WAITV,
			unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_SCHED_SETAFFINITY, unix.SYS_GET_MEMPOLICY, unix.SYS_SET_MEMPOLICY,
			unix.SYS_MOVE_PAGES, unix.SYS_CHROOT, unix.SYS_SECCOMP, unix.SYS_RSEQ, unix.SYS_CLOSE_RANGE, unix.SYS_FACCESSAT2, unix.SYS_STATX, unix.SYS_MEMBARRIER,
			unix.SYS_PKEY_ALLOC, unix.SYS_SHMGET, unix.SYS_MEMFD_CREATE, unix.SYS_IO_SETUP, unix.SYS_PIDFD_OPEN, unix.SYS_COPY_FILE_RANGE, unix.SYS_EXIT_GROUP,
		},
		answerOf(unix.EPERM): {
			unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT,
			unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, unix.SYS_BPF, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE,
			unix.SYS_DELETE_MODULE, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL, unix.SYS_REBOOT, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME,
			unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_SYSLOG, unix.SYS_SETNS,
			unix.SYS_UNSHARE, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER,
			unix.SYS_IO_URING_REGISTER, unix.SYS_FANOTIFY_INIT, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_VHANGUP, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME,
			unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_PIDFD_GETFD, unix.SYS_PROCESS_MADVISE, unix.SYS_KCMP, unix.SYS_QUOTACTL_FD,
		},
		answerOf(unix.ENOSYS): {
			unix.SYS_CLONE3, unix.SYS_LANDLOCK_CREATE_RULESET, unix.SYS_MEMFD_SECRET, unix.SYS_SET_MEMPOLICY_HOME_NODE, unix.SYS_MSEAL, unix.SYS_CACHESTAT,
			unix.SYS_MODIFY_LDT, unix.SYS_USELIB, unix.SYS_USTAT, unix.SYS_SYSFS, unix.SYS__SYSCTL, unix.SYS_MIGRATE_PAGES, unix.SYS_CREATE_MODULE,
			unix.SYS_NFSSERVCTL, 451, 500, 1000, oldCalls - 1,
		},
	} {
		for _, call := range calls {
			for _, argument := range []uint32{0, 1, 1 << 17, 1<<32 - 1} {
				if got := run(t, p, call, argument, argument, argument, argument); got != want {
					t.Errorf("call %d(%x): %x, want %x", call, argument, got, want)
				}
			}
		}
	}
	if got := run(t, p, oldCalls|unix.SYS_READ); got != answerOf(unix.EPERM) {
		t.Errorf("x32's read: %x", got)
	}
}

// TestChoices: some uses of a call are refused, whatever the other arguments are.
func TestChoices(t *testing.T) {
	p := filter(t)
	for _, c := range []struct {
		call      uintptr
		arguments []uint32
		want      uint32
	}{
		{unix.SYS_CLONE, []uint32{unix.CLONE_VM | unix.CLONE_THREAD | unix.CLONE_SIGHAND}, answerAllow},
		{unix.SYS_CLONE, []uint32{unix.CLONE_NEWUSER | 17}, answerOf(unix.EPERM)},
		{unix.SYS_CLONE, []uint32{unix.CLONE_NEWNS | unix.CLONE_VM}, answerOf(unix.EPERM)},
		{unix.SYS_SOCKET, []uint32{unix.AF_UNIX, 1, 0}, answerAllow},
		{unix.SYS_SOCKET, []uint32{unix.AF_NETLINK, 3, 4}, answerAllow},
		{unix.SYS_SOCKET, []uint32{unix.AF_NETLINK, 3, unix.NETLINK_ROUTE}, answerAllow},
		{unix.SYS_SOCKET, []uint32{unix.AF_NETLINK, 3, unix.NETLINK_GENERIC}, answerOf(unix.EPROTONOSUPPORT)},
		{unix.SYS_SOCKET, []uint32{unix.AF_NETLINK, 3, unix.NETLINK_NETFILTER}, answerOf(unix.EPROTONOSUPPORT)},
		{unix.SYS_SOCKET, []uint32{unix.AF_NETLINK, 3, unix.NETLINK_CRYPTO}, answerOf(unix.EPROTONOSUPPORT)},
		{unix.SYS_SOCKET, []uint32{unix.AF_INET, 1, unix.IPPROTO_TCP}, answerAllow},
		{unix.SYS_SOCKET, []uint32{unix.AF_INET6, 2, 0}, answerAllow},
		{unix.SYS_SOCKET, []uint32{unix.AF_INET, 1, unix.IPPROTO_SCTP}, answerOf(unix.EPROTONOSUPPORT)},
		{unix.SYS_SOCKET, []uint32{unix.AF_INET6, 6, unix.IPPROTO_DCCP}, answerOf(unix.EPROTONOSUPPORT)},
		{unix.SYS_SOCKET, []uint32{unix.AF_VSOCK, 1, 0}, answerOf(unix.EAFNOSUPPORT)},
		{unix.SYS_SOCKET, []uint32{unix.AF_ALG, 5, 0}, answerOf(unix.EAFNOSUPPORT)},
		{unix.SYS_SOCKET, []uint32{unix.AF_TIPC, 1, 0}, answerOf(unix.EAFNOSUPPORT)},
		{unix.SYS_SOCKETPAIR, []uint32{unix.AF_UNIX, 1, 0}, answerAllow},
		{unix.SYS_SOCKETPAIR, []uint32{unix.AF_TIPC, 1, 0}, answerOf(unix.EAFNOSUPPORT)},
		{unix.SYS_PERSONALITY, []uint32{0}, answerAllow},
		{unix.SYS_PERSONALITY, []uint32{0xffffffff}, answerAllow},
		{unix.SYS_PERSONALITY, []uint32{0x0040000}, answerAllow},
		{unix.SYS_PERSONALITY, []uint32{0x0400000}, answerOf(unix.EPERM)},
		{unix.SYS_PERSONALITY, []uint32{0x0100000}, answerOf(unix.EPERM)},
		{unix.SYS_PERSONALITY, []uint32{1}, answerOf(unix.EPERM)},
		{unix.SYS_PRCTL, []uint32{unix.PR_SET_NAME}, answerAllow},
		{unix.SYS_PRCTL, []uint32{unix.PR_SET_THP_DISABLE, 1, 0}, answerAllow},
		{unix.SYS_PRCTL, []uint32{unix.PR_SET_THP_DISABLE, 1, 2}, answerOf(unix.EINVAL)},
		{unix.SYS_PRCTL, []uint32{unix.PR_SET_TSC}, answerOf(unix.EINVAL)},
		{unix.SYS_MLOCKALL, []uint32{unix.MCL_CURRENT}, answerAllow},
		{unix.SYS_MLOCKALL, []uint32{unix.MCL_FUTURE}, answerOf(unix.EPERM)},
		{unix.SYS_FCNTL, []uint32{3, unix.F_SETLEASE}, answerOf(unix.EINVAL)},
		{unix.SYS_FCNTL, []uint32{3, unix.F_GETFL}, answerAllow},
	} {
		if got := run(t, p, c.call, c.arguments...); got != c.want {
			t.Errorf("call %d(%x): %x, want %x", c.call, c.arguments, got, c.want)
		}
	}
}

// BenchmarkProgram says what it takes to make the filter, as for each new container.
func BenchmarkProgram(b *testing.B) {
	for b.Loop() {
		if _, err := program(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCall says what the filter costs a call: one that is allowed whatever its arguments are, and
// one for which the filter runs.
func BenchmarkCall(b *testing.B) {
	for name, call := range map[string][2]uintptr{"getppid": {unix.SYS_GETPPID}, "fcntl": {unix.SYS_FCNTL, unix.F_GETFD}} {
		for _, filtered := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/filtered=%t", name, filtered), func(b *testing.B) {
				err := thread.Own(func() error { // which ends with its filter
					if filtered {
						if err := errors.Join(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), forbid()); err != nil {
							return err
						}
					}
					b.ResetTimer()
					for range b.N {
						unix.RawSyscall(call[0], 0, call[1], 0)
					}
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

// TestNoNewerMemory: of all kinds of memory programs may make those that Debian 12's kernel (6.1)
// knows, with any flags and advice, so that containers move to such a host. Others do not exist
// for them.
func TestNoNewerMemory(t *testing.T) {
	p := filter(t)
	for kind := range uint32(unix.MAP_TYPE + 1) {
		want := uint32(answerAllow)
		if kind&mapDroppable != 0 {
			want = answerOf(unix.EINVAL)
		}
		for bit := range 28 { // the flags, of which the kernel ignores those that it does not know
			if got := run(t, p, unix.SYS_MMAP, 0, 4096, unix.PROT_READ, kind|16<<bit); got != want {
				t.Errorf("mmap of the kind %x with the flag %x: %x", kind, 16<<bit, got)
			}
		}
	}
	const newest = 25 // MADV_COLLAPSE, of Linux 6.1
	for advice := range uint32(200) {
		got := run(t, p, unix.SYS_MADVISE, 0, 4096, advice)
		if advice <= newest && got != answerAllow || advice == 102 && got != answerOf(unix.EINVAL) {
			t.Errorf("madvise %d: %x", advice, got)
		}
	}
}
