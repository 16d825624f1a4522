package criu

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Heal makes what a CRIU that was killed during a dump left work again: TCP
// connections, which it had stopped to look into them, and which give the
// container's processes errors until then. pid is the container's first process.
// All else the kernel has undone when CRIU died, and the code that CRIU puts into
// a process returns to the process's own as soon as nobody talks to it; only the
// memory of that code stays behind.
//
// It harms nothing that is well, and may be called at any time when no dump of the
// container runs, as when an agent finds a container whose agent died.
func Heal(pid int) error {
	all, err := Processes(pid)
	if err != nil {
		return fmt.Errorf("heal the connections of process %d: %w", pid, err)
	}
	var errs []error
	seen := map[string]bool{}
	for _, p := range all {
		if err := healProcess(p, seen); err != nil && !isGone(err) {
			errs = append(errs, fmt.Errorf("heal the connections of process %d: %w", p, err))
		}
	}
	return errors.Join(errs...)
}

// isGone says that there is no such process, or no longer.
func isGone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// healProcess heals the sockets of one process that are not in seen yet.
func healProcess(pid int, seen map[string]bool) error {
	handle, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("open it: %w", err)
	}
	defer unix.Close(handle)
	folder := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		what, err := os.Readlink(filepath.Join(folder, e.Name()))
		if err != nil || !strings.HasPrefix(what, "socket:") || seen[what] {
			continue
		}
		seen[what] = true
		if err := healSocket(handle, e.Name()); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	return errors.Join(errs...)
}

func healSocket(process int, name string) error {
	var number int
	if _, err := fmt.Sscan(name, &number); err != nil {
		return err
	}
	fd, err := unix.PidfdGetfd(process, number, 0)
	if errors.Is(err, unix.EBADF) || errors.Is(err, unix.ESRCH) {
		return nil // closed meanwhile
	}
	if err != nil {
		return fmt.Errorf("borrow it: %w", err)
	}
	defer unix.Close(fd)
	if kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || kind != unix.IPPROTO_TCP {
		return nil
	}
	if on, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR); err != nil || on == 0 {
		return nil
	}
	// The kernel asks the peer at once whether it missed something.
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 0); err != nil {
		return fmt.Errorf("let it go on: %w", err)
	}
	return nil
}

// A control group's state is in one file, whose name tells the version.
var freezers = []struct{ file, frozen string }{
	{"freezer.state", "FROZEN"},
	{"cgroup.freeze", "1"},
}

// isFrozen says whether the control group in a folder is frozen, or about to be.
func isFrozen(folder string) (bool, error) {
	if folder == "" {
		return false, nil
	}
	for _, f := range freezers {
		text, err := os.ReadFile(filepath.Join(folder, f.file))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("ask whether the control group is frozen: %w", err)
		}
		state := strings.TrimSpace(string(text))
		return state == f.frozen || state == "FREEZING", nil
	}
	return false, fmt.Errorf("%s is no control group that can be frozen", folder)
}

// freezeLimit is how long processes may take to stand still: one that waits for
// a disk takes as long as that.
const (
	freezeLimit = 10 * time.Second
	freezeAgain = 2 * time.Millisecond
)

// freeze freezes a control group and waits until all in it stand still.
func freeze(folder string) error {
	for _, f := range freezers {
		path := filepath.Join(folder, f.file)
		if _, err := os.Stat(path); err != nil {
			continue
		}
		if err := os.WriteFile(path, []byte(f.frozen), 0); err != nil {
			return fmt.Errorf("freeze %s again: %w", folder, err)
		}
		for end := time.Now().Add(freezeLimit); ; time.Sleep(freezeAgain) {
			if stands, err := standsStill(folder); stands || err != nil {
				return err
			}
			if time.Now().After(end) {
				return fmt.Errorf("freeze %s again: its processes do not stand still within %s", folder, freezeLimit)
			}
		}
	}
	return fmt.Errorf("%s is no control group that can be frozen", folder)
}

// standsStill says whether a freeze has come to its end.
func standsStill(folder string) (bool, error) {
	text, err := os.ReadFile(filepath.Join(folder, "freezer.state"))
	if err == nil {
		return strings.TrimSpace(string(text)) == "FROZEN", nil
	}
	if text, err = os.ReadFile(filepath.Join(folder, "cgroup.events")); err != nil {
		return false, fmt.Errorf("ask whether %s is frozen: %w", folder, err)
	}
	return strings.Contains(string(text), "frozen 1"), nil
}
