package thread

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// As calls f on a thread of its own that has a user's rights on files, and none of root's. The
// thread stays root's: the user can do nothing to it.
func As(uid, gid uint32, groups []uint32, f func() error) error {
	return Own(func() error {
		var first unsafe.Pointer
		if len(groups) > 0 {
			first = unsafe.Pointer(&groups[0])
		}
		// Package syscall would change all threads. A change of the user removes root's powers over files.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(first), 0); errno != 0 {
			return fmt.Errorf("take the groups of user %d: %w", uid, errno)
		}
		_ = unix.Setfsgid(int(gid)) // the next lines ask what became of it
		_ = unix.Setfsuid(int(uid))
		const ask = -1 // no user: changes nothing, and says who it is
		isGid, _ := unix.SetfsgidRetGid(ask)
		isUid, _ := unix.SetfsuidRetUid(ask)
		if uint32(isUid) != uid || uint32(isGid) != gid {
			return fmt.Errorf("act as user %d: still user %d, group %d", uid, isUid, isGid)
		}
		return f()
	})
}

// Powerless gives up all of root's capabilities on the calling thread, which has to be one of Own, In or As.
func Powerless() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("give up root's powers: %w", err)
	}
	return nil
}
