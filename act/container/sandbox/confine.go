package sandbox

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// kept lists the capabilities of a container's root: to change files of other users, to become
// the job's user, to end its programs, and to listen on a port below 1024. Networks and mounts
// are made from outside.
var kept = []int{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL, unix.CAP_SETGID, unix.CAP_SETUID,
	unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_CHROOT,
}

// confine gives up every privilege that a container's programs do not need, for this thread and
// its descendants.
func confine() error {
	var set [2]uint32
	for _, c := range kept {
		set[c/32] |= 1 << (c % 32)
	}
	for c := 0; c <= unix.CAP_LAST_CAP; c++ {
		if set[c/32]&(1<<(c%32)) != 0 {
			continue
		}
		// EINVAL: the kernel does not know the capability.
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && err != unix.EINVAL {
			return fmt.Errorf("give up capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	rights := [2]unix.CapUserData{{Effective: set[0], Permitted: set[0]}, {Effective: set[1], Permitted: set[1]}}
	// The mode of a program's file cannot give it more privileges either.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("refuse new rights: %w", err)
	}
	// The filter is set while this is certainly allowed.
	if err := forbid(); err != nil {
		return err
	}
	if err := unix.Capset(&header, &rights[0]); err != nil {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	return nil
}

// forbidden lists system calls that no program of a job needs and that affect the host, or have
// been abused to do so. Most would fail anyway without capabilities. Calls to start and trace
// programs are allowed: ranks and debuggers use ptrace(2) and process_vm_readv(2).
var forbidden = []uintptr{
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_FSOPEN, unix.SYS_FSCONFIG,
	unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, unix.SYS_BPF, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	unix.SYS_REBOOT, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX,
	unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_SYSLOG,
	unix.SYS_SETNS, unix.SYS_UNSHARE, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_FANOTIFY_INIT, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_VHANGUP,
}
