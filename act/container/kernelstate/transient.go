package kernelstate

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/container/criu"
	"pagurus/act/host"
)

// Connections returns an error while a process's network has connections that CRIU cannot move,
// or would silently lose.
func Connections(pid int) error {
	odd, err := host.Unsettled(pid)
	if err == nil && odd != "" {
		err = fmt.Errorf("%s: %w", odd, criu.ErrTransient)
	}
	return err
}

// Vforks returns an error while a process of a container, given its first process, waits for a
// child by vfork(2). It could not be stopped, and CRIU would try for ten seconds.
func Vforks(pid int) error {
	if who := criu.Vforking(pid); who != "" {
		return fmt.Errorf("%s waits for a child that has its memory until that runs another program or ends (vfork(2)): %w", who, criu.ErrTransient)
	}
	return nil
}

// Locks returns an error while a process of a container has an exclusive lock on a file below
// folders. pid is the container's first process, and below are the folders' paths in the container.
// The container must be suspended, because later locks are not seen.
//
// The frozen processes keep their locks until the target has answered. There CRIU restores locks
// by calls that wait for the current holder: each would wait for the other. Releasing the locks
// here first would not help: another process could take one in the middle of the protected work.
// Shared locks can move.
func Locks(pid int, below ...string) error {
	if found := Locked(pid, below...); len(found) > 0 {
		return fmt.Errorf("%s: %w", found[0], criu.ErrTransient)
	}
	return nil
}

// locksLast is how long a lock must last to be reported. Many are very short, and a move waits
// for them.
const locksLast = 100 * time.Millisecond

// LastingLocks returns the locks of Locked that still exist a moment later.
func LastingLocks(ctx context.Context, pid int, below ...string) []string {
	found := Locked(pid, below...)
	if len(found) == 0 {
		return nil
	}
	select {
	case <-ctx.Done():
	case <-time.After(locksLast):
	}
	again := Locked(pid, below...)
	return slices.DeleteFunc(found, func(says string) bool { return !slices.Contains(again, says) })
}

// Locked returns, for people, all the errors. Locks returns only the first of them.
func Locked(pid int, below ...string) (found []string) {
	seen := map[string]bool{}
	each(pid, below, func(l lock) {
		if !l.shared && !seen[l.file] {
			seen[l.file] = true
			found = append(found, fmt.Sprintf("%s has locked %q for itself alone, and such a lock cannot go to another host: let it unlock or close the file, "+
				"or do without locks, as HDF5 does by `HDF5_USE_FILE_LOCKING=FALSE` in its environment", criu.NameOf(l.process), l.path))
		}
	})
	return found
}

// Release releases the shared locks of a container's processes that never run here again, where
// that is possible from outside. Otherwise, when a process unlocks the file at the target,
// others still could not lock it until the processes here are ended.
func Release(pid int, below ...string) {
	each(pid, below, func(l lock) {
		if l.kind != byFlock && l.kind != byOFD { // only the process itself can release POSIX locks
			return
		}
		handle, err := unix.PidfdOpen(l.process, 0)
		if err != nil {
			return
		}
		defer unix.Close(handle)
		fd, err := unix.PidfdGetfd(handle, l.number, 0)
		if err != nil {
			return
		}
		defer unix.Close(fd)
		if l.kind == byFlock {
			_ = unix.Flock(fd, unix.LOCK_UN)
		} else {
			_ = unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK})
		}
	})
}

// Kinds of lock that belong to an open file, whichever process has it.
const (
	byFlock = "FLOCK"  // of flock(2)
	byOFD   = "OFDLCK" // of fcntl(2)
)

// lock is a lock that a process holds through one of its descriptors.
type lock struct {
	process, number int
	path            string // of the file, in the container
	kind, file      string // as the kernel names them
	shared          bool   // it is a shared lock
}

// each finds all locks of a container's processes on files below folders.
func each(pid int, below []string, f func(lock)) {
	if len(below) == 0 {
		return
	}
	for _, process := range host.Family(pid) {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", process))
		if err != nil {
			continue // it has ended
		}
		for _, e := range entries {
			at := fmt.Sprintf("/proc/%d/fd/%s", process, e.Name())
			path, err := os.Readlink(at)
			if err != nil || !within(path, below) {
				continue
			}
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", process, e.Name()))
			for line := range strings.Lines(string(text)) {
				l, ok := parse(line)
				if _, err := fmt.Sscan(e.Name(), &l.number); !ok || err != nil || nameless(at) {
					continue
				}
				l.process, l.path = process, path
				f(l)
			}
		}
	}
}

// within reports whether a path is one of these folders or below one.
func within(path string, folders []string) bool {
	return slices.ContainsFunc(folders, func(f string) bool {
		f = filepath.Clean(f)
		return path == f || strings.HasPrefix(path, f+"/")
	})
}

// nameless reports whether an open file has lost its name: the target then gets its own copy.
func nameless(at string) bool {
	var st unix.Stat_t
	return unix.Stat(at, &st) == nil && st.Nlink == 0
}

// parse reads a line of /proc/PID/fdinfo/N, as the kernel's fs/locks.c writes it. A lease that
// is being broken counts as exclusive: it cannot be taken again.
func parse(line string) (l lock, ok bool) {
	rest, ok := strings.CutPrefix(line, "lock:")
	f := strings.Fields(rest)
	if !ok || len(f) < 6 {
		return l, false
	}
	return lock{kind: f[1], file: f[5], shared: f[3] == "READ" && f[2] != "BREAKING"}, true
}
