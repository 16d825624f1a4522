package kernelstate

import (
	"fmt"
	"math"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"pagurus/act/container/criu"
	"pagurus/act/host"
)

// Reading returns an error while a process of a container, given its first process, cannot
// continue to read at the target. Either it has read a part of one of the container's folders,
// whose names the target lists in another order. Or it has not read its inotify events. below are
// the folders with the job's files, which the target lists in the same order.
func Reading(pid int, below ...string) error {
	for _, process := range host.Family(pid) {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", process))
		if err != nil {
			continue // it has ended
		}
		for _, e := range entries {
			at := fmt.Sprintf("/proc/%d/fd/%s", process, e.Name())
			name, err := os.Readlink(at)
			if err != nil {
				continue
			}
			says := ""
			switch {
			case name == "anon_inode:inotify" && untold(process, e.Name()):
				says = "has not read what inotify tells it of files"
			case strings.HasPrefix(name, "/") && !within(name, below) && readInPart(process, e.Name(), at):
				says = fmt.Sprintf("is reading the folder %q", name)
			}
			if says != "" {
				return fmt.Errorf("%s %s: let it read on: %w", criu.NameOf(process), says, criu.ErrTransient)
			}
		}
	}
	return nil
}

// untold reports whether an inotify instance has unread events.
func untold(process int, number string) bool {
	handle, err := unix.PidfdOpen(process, 0)
	if err != nil {
		return false
	}
	defer unix.Close(handle)
	var n int
	if _, err := fmt.Sscan(number, &n); err != nil {
		return false
	}
	fd, err := unix.PidfdGetfd(handle, n, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	waits, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	return err == nil && waits > 0
}

// readInPart reports whether an open file is a folder in memory that was read in part. At the
// folder's end the kernel has a position that no name has.
func readInPart(process int, number, at string) bool {
	var fs unix.Statfs_t
	if !folderAt(at) || unix.Statfs(at, &fs) != nil || fs.Type != unix.TMPFS_MAGIC {
		return false
	}
	p := position(process, number)
	return p > 0 && p < math.MaxInt32
}

func folderAt(at string) bool {
	var st unix.Stat_t
	return unix.Stat(at, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

// position is where a process reads or writes an open file.
func position(process int, number string) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", process, number))
	var position int64
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "pos:"); ok {
			_, _ = fmt.Sscan(rest, &position)
		}
	}
	return position
}

// Crossing returns an error while a process of a container holds what cannot go to a target
// that reaches the files in these folders in another way: a lock by flock(2), which is of
// another kind there and would exclude no process here, or a position in a folder, which has
// other positions there.
func Crossing(pid int, below ...string) (err error) {
	each(pid, below, func(l lock) {
		if l.kind == byFlock && err == nil {
			err = fmt.Errorf("%s has locked %q by flock(2), which is another lock where the target reaches the job's files in another way: let it unlock or close the file, or lock by fcntl(2): %w",
				criu.NameOf(l.process), l.path, criu.ErrTransient)
		}
	})
	if err != nil || len(below) == 0 {
		return err
	}
	for _, process := range host.Family(pid) {
		entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", process)) // after an error it has ended
		for _, e := range entries {
			at := fmt.Sprintf("/proc/%d/fd/%s", process, e.Name())
			name, err := os.Readlink(at)
			if err == nil && within(name, below) && folderAt(at) && position(process, e.Name()) > 0 {
				return fmt.Errorf("%s is reading the folder %q: let it read on: %w", criu.NameOf(process), name, criu.ErrTransient)
			}
		}
	}
	return nil
}
