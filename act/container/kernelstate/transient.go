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

// Connections gives an error while the network of a process has connections that CRIU
// cannot take along, or would lose without a word.
func Connections(pid int) error {
	odd, err := host.Unsettled(pid)
	if err == nil && odd != "" {
		err = fmt.Errorf("%s: %w", odd, criu.ErrTransient)
	}
	return err
}

// Vforks gives an error while a process of a container, given its first, waits for a child
// by vfork(2): it could not be stopped, and to try takes CRIU ten seconds.
func Vforks(pid int) error {
	if who := criu.Vforking(pid); who != "" {
		return fmt.Errorf("%s waits for a child that has its memory until that runs another program or ends (vfork(2)): %w", who, criu.ErrTransient)
	}
	return nil
}

// Locks gives an error while a process of a container, given its first, has locked a
// file below a folder, named as it is inside, for itself alone. It has to be suspended:
// what it locks afterwards is not seen. No folder: there is no such file.
//
// The frozen processes keep their locks until the target has answered, and CRIU takes
// them there by calls that wait for whoever has them: each would wait for the other. To
// let go of them here first is no remedy, since whoever waits for one gets it in
// between, in the middle of what it was taken for. What is locked together with others goes along.
func Locks(pid int, below string) error {
	if found := Locked(pid, below); len(found) > 0 {
		return fmt.Errorf("%s: %w", found[0], criu.ErrTransient)
	}
	return nil
}

// locksLast is how long a lock has to be there to be told of: many are of a moment, and
// for these a move waits.
const locksLast = 100 * time.Millisecond

// LastingLocks is Locked without what is not there any more a moment later.
func LastingLocks(ctx context.Context, pid int, below string) []string {
	found := Locked(pid, below)
	if len(found) == 0 {
		return nil
	}
	select {
	case <-ctx.Done():
	case <-time.After(locksLast):
	}
	again := Locked(pid, below)
	return slices.DeleteFunc(found, func(says string) bool { return !slices.Contains(again, says) })
}

// Locked says, for people, what Locks gives the first of as an error.
func Locked(pid int, below string) (found []string) {
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

// Release lets go of what the processes of a container that never runs here again
// have locked together with others, where that can be done for them. Otherwise who
// has it at its target and unlocks it would find others kept from locking it, until
// these are ended.
func Release(pid int, below string) {
	each(pid, below, func(l lock) {
		if l.kind != byFlock && l.kind != byOFD { // those of POSIX are the process's own to let go of
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

// How locks are called that belong to an open file, whoever has that.
const (
	byFlock = "FLOCK"  // of flock(2)
	byOFD   = "OFDLCK" // of fcntl(2)
)

// lock is a lock that a process has by one of its descriptors.
type lock struct {
	process, number int
	path            string // of the file, inside
	kind, file      string // as the kernel names them
	shared          bool   // with others who have it, too
}

// each finds all locks of a container's processes on files below a folder.
func each(pid int, below string, f func(lock)) {
	if below == "" {
		return
	}
	below = filepath.Clean(below)
	for _, process := range host.Family(pid) {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", process))
		if err != nil {
			continue // it is gone
		}
		for _, e := range entries {
			at := fmt.Sprintf("/proc/%d/fd/%s", process, e.Name())
			path, err := os.Readlink(at)
			if err != nil || path != below && !strings.HasPrefix(path, below+"/") {
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

// nameless says of an open file that it has no name any more: its target gets one of
// its own.
func nameless(at string) bool {
	var st unix.Stat_t
	return unix.Stat(at, &st) == nil && st.Nlink == 0
}

// parse reads a line of /proc/PID/fdinfo/N, as the kernel's fs/locks.c writes it. A
// lease that is being broken is like one that nobody shares: it cannot be taken again.
func parse(line string) (l lock, ok bool) {
	rest, ok := strings.CutPrefix(line, "lock:")
	f := strings.Fields(rest)
	if !ok || len(f) < 6 {
		return l, false
	}
	return lock{kind: f[1], file: f[5], shared: f[3] == "READ" && f[2] != "BREAKING"}, true
}
