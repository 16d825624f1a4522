package share

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A server's room is a small file system in memory, with the records of the server's clients, which the job's user
// may write, and the log. So whoever takes the server over cannot fill the host's memory. It stays when the server ends, for
// its successor. It is made in full before the user gets it, and root changes nothing in it afterwards: below a folder
// of the user's, a name may come to mean another file at any time.

const (
	// roomSize is enough for a log and for the records, which are names: each client has a few.
	roomSize = "size=4m,nr_inodes=8192,mode=700"
	// mostDepth is more than the records' folders have.
	mostDepth = 8
	// namesAtOnce is how many names of a folder are read at a time.
	namesAtOnce = 256
)

func roomPath(folder string) string { return filepath.Join(folder, "room") }

// recordsPath is where the host has what the server has at recoveryPath.
func recordsPath(folder string) string { return filepath.Join(roomPath(folder), "recovery") }

// makeRoom makes the room for the job's user, unless there is one.
func (v *server) makeRoom() (err error) {
	at, uid := roomPath(v.folder), v.network.Share.UID
	if mounted, err := isMount(at); err != nil {
		return err
	} else if mounted {
		var st unix.Stat_t
		if unix.Lstat(recordsPath(v.folder), &st) == nil && st.Uid == uid {
			return nil
		}
		if err := v.removeRoom(); err != nil { // another user's, or it was never finished
			return err
		}
	}
	if err := os.MkdirAll(at, 0o700); err != nil {
		return fmt.Errorf("making its folder: %w", err)
	}
	if err := unix.Mount("pagurus", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, roomSize); err != nil {
		return fmt.Errorf("mounting its folder in memory: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("making its folder in memory: %w", err), v.removeRoom())
		}
	}()
	made := filepath.Join(at, "made")
	if err := os.Mkdir(made, 0o700); err != nil {
		return err
	}
	if err := v.inherit(made); err != nil {
		return err
	}
	if err := os.Chown(made, int(uid), int(v.network.Share.GID)); err != nil {
		return err
	}
	return os.Rename(made, recordsPath(v.folder))
}

// inherit takes over the records that an earlier version's server has left, which was root's or the user's.
func (v *server) inherit(into string) error {
	earlier := recoveryPath(v.folder)
	from, err := openFolder(unix.AT_FDCWD, earlier)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := openFolder(unix.AT_FDCWD, into)
	if err != nil {
		return err
	}
	defer to.Close()
	err = copyNames(from, to, [2]int{int(v.network.Share.UID), int(v.network.Share.GID)}, mostDepth)
	if err != nil && !errors.Is(err, unix.ENOSPC) { // more than any server writes
		return fmt.Errorf("taking over the records of its clients: %w", err)
	}
	if err := os.RemoveAll(earlier); err != nil { // which follows no link
		return err
	}
	return os.Mkdir(earlier, 0o700)
}

// openFolder opens a folder, and nothing that a link names.
func openFolder(in int, name string) (*os.File, error) {
	fd, err := unix.Openat(in, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// copyNames makes folders and empty files with the names of those in another folder, which is all that the records are. The owner gets
// them. The other folder may change meanwhile.
func copyNames(from, to *os.File, owner [2]int, depth int) error {
	for {
		entries, err := from.ReadDir(namesAtOnce)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := copyName(from, to, e, owner, depth); err != nil {
				return err
			}
		}
	}
}

func copyName(from, to *os.File, e fs.DirEntry, owner [2]int, depth int) error {
	in := int(to.Fd())
	switch {
	case e.IsDir() && depth > 0:
		below, err := openFolder(int(from.Fd()), e.Name())
		if err != nil {
			return nil // it is gone, or a link by now
		}
		defer below.Close()
		if err := unix.Mkdirat(in, e.Name(), 0o700); err != nil {
			return err
		}
		own, err := openFolder(in, e.Name())
		if err != nil {
			return err
		}
		defer own.Close()
		if err := copyNames(below, own, owner, depth-1); err != nil {
			return err
		}
	case e.Type().IsRegular():
		fd, err := unix.Openat(in, e.Name(), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		if err := unix.Close(fd); err != nil {
			return err
		}
	default:
		return nil
	}
	return unix.Fchownat(in, e.Name(), owner[0], owner[1], unix.AT_SYMLINK_NOFOLLOW)
}

// isMount reports whether something is mounted at a path.
func isMount(path string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, 0, &st)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for a mount at %s: %w", path, err)
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// removeRoom removes the room with what is in it. A server that still runs keeps its own view.
func (v *server) removeRoom() error {
	at := roomPath(v.folder)
	for {
		mounted, err := isMount(at)
		if err != nil || !mounted {
			return err
		}
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmounting %s: %w", at, err)
		}
	}
}
