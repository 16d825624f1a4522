package memory

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// uffdKind is the kernel's name for a userfaultfd among a process's files.
const uffdKind = "anon_inode:[userfaultfd]"

// exiting is the flag of a process that has begun to exit (PF_EXITING). It is set before
// its files are closed.
const exiting = 0x4

// UffdHolder holds the userfaultfds of one process. It must not be used concurrently.
type UffdHolder struct {
	pid     int
	process int         // pidfd of the process
	held    map[int]int // from the process's descriptors to ours
}

// newUffdHolder opens a process. It holds none of its userfaultfds yet.
func newUffdHolder(pid int) (*UffdHolder, error) {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("take hold of process %d: %w", pid, err)
	}
	return &UffdHolder{pid, process, map[int]int{}}, nil
}

// Held returns how many userfaultfds are held.
func (g *UffdHolder) Held() int { return len(g.held) }

// HoldAll takes the userfaultfds that the process has now, and closes those that the
// process has closed. It keeps all of them if the process has ended in any way. It
// returns how many are held. After an error some are missing and none was closed.
func (g *UffdHolder) HoldAll() (held int, err error) {
	there, err := g.there()
	for n := range there {
		// Taken each time, because the descriptor's number may have been reused.
		fd, e := unix.PidfdGetfd(g.process, n, 0)
		switch {
		case errors.Is(e, unix.EBADF), errors.Is(e, unix.ESRCH):
			delete(there, n)
		case e != nil:
			err = errors.Join(err, fmt.Errorf("hold descriptor %d of process %d, too: %w", n, g.pid, e))
		default:
			if old, ok := g.held[n]; ok {
				_ = unix.Close(old)
			}
			g.held[n] = fd
		}
	}
	// Checked last: a process that is not exiting now has closed the others itself.
	if err == nil && !g.Ended() {
		for n, fd := range g.held {
			if !there[n] {
				_ = unix.Close(fd)
				delete(g.held, n)
			}
		}
	}
	return len(g.held), err
}

// there returns the descriptors of the process's userfaultfds, or none if it has ended.
func (g *UffdHolder) there() (map[int]bool, error) {
	folder, all := fmt.Sprintf("/proc/%d/fd", g.pid), map[int]bool{}
	entries, err := os.ReadDir(folder)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return all, nil
	}
	if err != nil {
		return all, fmt.Errorf("list the open files of process %d: %w", g.pid, err)
	}
	for _, e := range entries {
		if what, _ := os.Readlink(filepath.Join(folder, e.Name())); what != uffdKind {
			continue
		}
		if n, err := strconv.Atoi(e.Name()); err == nil {
			all[n] = true
		}
	}
	return all, nil
}

// Ended reports whether the process has ended or is exiting.
func (g *UffdHolder) Ended() bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", g.pid))
	if err != nil || unix.PidfdSendSignal(g.process, 0, nil, 0) != nil { // in this order: the PID still belonged to the process
		return true
	}
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(f) < 7 {
		return true
	}
	flags, err := strconv.ParseUint(f[6], 10, 64)
	return err != nil || flags&exiting != 0
}

// Close closes all userfaultfds that are held.
func (g *UffdHolder) Close() {
	for _, fd := range slices.Collect(maps.Values(g.held)) {
		_ = unix.Close(fd)
	}
	clear(g.held)
	_ = unix.Close(g.process)
}
