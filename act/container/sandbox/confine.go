package sandbox

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// kept lists the capabilities of a container's root: to change files of other users, to become
// the job's user, to end its programs, to listen on a port below 1024, as its guest agent does for
// mpirun, and to give a program another root folder. Networks and mounts are made from outside.
var kept = map[string]int{
	"CAP_CHOWN": unix.CAP_CHOWN, "CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "CAP_FOWNER": unix.CAP_FOWNER,
	"CAP_KILL": unix.CAP_KILL, "CAP_SETGID": unix.CAP_SETGID, "CAP_SETUID": unix.CAP_SETUID,
	"CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE, "CAP_SYS_CHROOT": unix.CAP_SYS_CHROOT,
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
