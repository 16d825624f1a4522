package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/thread"
)

// Enter opens the directory with the user's permissions. Otherwise a job could reach
// directories that its user cannot enter. The server serves the opened directory, wherever the
// path leads later.
func Enter(ctx context.Context, s fleet.Share) (*os.File, error) {
	var groups []uint32
	if s.UID != 0 {
		groups = groupsOf(ctx, s.UID)
	}
	type opened struct {
		dir *os.File
		err error
	}
	done := make(chan opened, 1)
	go func() {
		var o opened
		o.err = thread.Own(func() (err error) {
			if s.UID != 0 {
				if err := become(s.UID, s.GID, groups); err != nil {
					return err
				}
			}
			o.dir, err = openDirectory(s.Export)
			return err
		})
		done <- o
	}()
	select {
	case o := <-done:
		switch {
		case errors.Is(o.err, unix.EACCES):
			return nil, fmt.Errorf("user %d may not enter the directory %s: submit from a directory of your own", s.UID, s.Export)
		case o.err != nil:
			return nil, fmt.Errorf("the directory %s cannot be shared, %w: submit from another directory", s.Export, o.err)
		}
		return o.dir, nil
	case <-ctx.Done():
		go func() {
			if o := <-done; o.dir != nil {
				o.dir.Close()
			}
		}()
		return nil, fmt.Errorf("opening the directory %s: %w: does a network file system not answer?", s.Export, ctx.Err())
	}
}

// openDirectory fails for a directory that can be listed but not entered, because of the
// dot. Links in /proc would lead to this process's files.
func openDirectory(path string) (*os.File, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	for {
		fd, err := unix.Openat2(unix.AT_FDCWD, path+"/.", &how)
		if err == nil {
			return os.NewFile(uintptr(fd), path), nil
		}
		if err != unix.EINTR && err != unix.EAGAIN {
			return nil, err
		}
	}
}

// become gives the calling thread the user's permissions on files, and removes root's.
// Its real user stays root: otherwise the user could kill the thread, and with it this
// process.
func become(uid, gid uint32, groups []uint32) error {
	var first unsafe.Pointer
	if len(groups) > 0 {
		first = unsafe.Pointer(&groups[0])
	}
	// Not through package syscall, which would change all threads.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(first), 0); errno != 0 {
		return fmt.Errorf("taking the groups of user %d: %w", uid, errno)
	}
	unix.SetfsgidRetGid(int(gid))
	unix.SetfsuidRetUid(int(uid))
	const ask = -1 // an invalid user: changes nothing and returns the present one
	isGid, _ := unix.SetfsgidRetGid(ask)
	isUid, _ := unix.SetfsuidRetUid(ask)
	if uint32(isUid) != uid || uint32(isGid) != gid {
		return fmt.Errorf("becoming user %d for a moment: still user %d, group %d", uid, isUid, isGid)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("giving up root's powers for a moment: %w", err)
	}
	return nil
}

// groupsOf returns all groups of a user; none if the user has no name. It uses id, which
// also knows users that are not in /etc.
func groupsOf(ctx context.Context, uid uint32) []uint32 {
	out, err := exec.CommandContext(ctx, "id", "-G", "--", strconv.FormatUint(uint64(uid), 10)).Output()
	if err != nil {
		return nil
	}
	var groups []uint32
	for _, f := range strings.Fields(string(out)) {
		if g, err := strconv.ParseUint(f, 10, 32); err == nil {
			groups = append(groups, uint32(g))
		}
	}
	return groups
}

// copyOf makes a detached mount of the directory with the mounts below it.
func copyOf(dir *os.File) (*os.File, error) {
	fd, err := unix.OpenTree(int(dir.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
	if err != nil {
		return nil, fmt.Errorf("holding on to %s: %w", dir.Name(), err)
	}
	return os.NewFile(uintptr(fd), dir.Name()), nil
}
