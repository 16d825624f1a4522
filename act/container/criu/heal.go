package criu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Heal makes what a CRIU that was killed during a dump left work again: TCP
// connections, which it had stopped to look into them. Until then reading and
// writing them fails, with "operation not permitted"; a process that does so
// before they are healed may give up. So processes ought to stand still, in a
// frozen control group, when CRIU is killed, which only who kills it can arrange.
// pid is the container's first process.
//
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

// releaseLimit is how long a CRIU whose caller died may take to notice: it does at
// its next step, unless it hangs.
const (
	releaseLimit = 5 * time.Second
	releaseAgain = 10 * time.Millisecond
)

// Release makes sure that no CRIU holds the container with this first process any
// more, as an agent must that finds one whose agent died: it waits until CRIU has
// undone what it did, and otherwise ends it as Dump would. folder is as
// DumpSpec.Freezer. After it the container is running, or frozen if it was before
// the dump, with all its connections; if CRIU had to be ended it is frozen in any
// case. There being no CRIU is no error; that somebody else holds it is, if they do for
// longer than what the dead agent had begun beside CRIU takes to end.
func (c Criu) Release(ctx context.Context, pid int, folder string) error {
	wrap := func(err error) error { return fmt.Errorf("release process %d from criu: %w", pid, err) }
	tracer, err := c.tracer(pid)
	held := func() bool { return err == nil && tracer != 0 || errors.Is(err, os.ErrPermission) }
	for end := time.Now().Add(releaseLimit); held() && time.Now().Before(end); tracer, err = c.tracer(pid) {
		select {
		case <-ctx.Done():
			return wrap(context.Cause(ctx))
		case <-time.After(releaseAgain):
		}
	}
	if err != nil || tracer == 0 {
		if err == nil {
			err = errors.Join(freezer(folder).returnThreads(pid), Heal(pid)) // it may have been killed, too
		}
		if err != nil {
			return wrap(err)
		}
		return nil
	}
	// CRIU has thawed the group, so nobody knows how it was before.
	group := freezer(folder)
	handle, err := unix.PidfdOpen(tracer, 0)
	if err != nil {
		return wrap(err)
	}
	defer unix.Close(handle)
	err = group.set(true)
	if err == nil {
		err = ignoreGone(unix.PidfdSendSignal(handle, unix.SIGKILL, nil, 0))
	}
	for end := time.Now().Add(releaseLimit); err == nil && time.Now().Before(end); time.Sleep(releaseAgain) {
		if tracer, err = c.tracer(pid); tracer == 0 {
			break
		}
	}
	if err == nil {
		err = errors.Join(group.returnThreads(pid), group.awaitFrozen(), Heal(pid))
	}
	if err != nil {
		return wrap(err)
	}
	return nil
}

// tracer is the CRIU that holds a process; 0: none does.
func (c Criu) tracer(pid int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	tracer, _ := strconv.Atoi(field(text, "TracerPid:"))
	if tracer == 0 {
		return 0, nil
	}
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", tracer))
	if isGone(err) {
		return 0, nil
	}
	exe, _ = strings.CutSuffix(exe, " (deleted)") // by a newer one
	if err != nil || exe != c.Path && !strings.HasPrefix(exe, prefix+"/") {
		return 0, fmt.Errorf("it is held by another program, %s: %w", NameOf(tracer), errors.Join(err, os.ErrPermission))
	}
	return tracer, nil
}

func ignoreGone(err error) error {
	if isGone(err) {
		return nil
	}
	return err
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

// freezer is the folder of a control group that can be frozen; empty: there is none.
type freezer string

// freezers are the two versions: a control group's state is in one file.
var freezers = []struct{ file, frozen, thawed string }{
	{"freezer.state", "FROZEN", "THAWED"},
	{"cgroup.freeze", "1", "0"},
}

// frozen says whether it is, or is about to be.
func (f freezer) frozen() (bool, error) {
	if f == "" {
		return false, nil
	}
	for _, v := range freezers {
		text, err := os.ReadFile(filepath.Join(string(f), v.file))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("ask whether the control group is frozen: %w", err)
		}
		return strings.TrimSpace(string(text)) != v.thawed, nil
	}
	return false, fmt.Errorf("%s is not a control group that can be frozen", f)
}

// set freezes or thaws it, and waits for nothing.
func (f freezer) set(frozen bool) error {
	if f == "" {
		return nil
	}
	for _, v := range freezers {
		path, state := filepath.Join(string(f), v.file), v.thawed
		if _, err := os.Stat(path); err != nil {
			continue
		}
		if frozen {
			state = v.frozen
		}
		if err := os.WriteFile(path, []byte(state), 0); err != nil {
			return fmt.Errorf("freeze or thaw the control group: %w", err)
		}
		return nil
	}
	return fmt.Errorf("%s is not a control group that can be frozen", f)
}

// freezeLimit is how long processes may take to stand still: one that waits for
// a disk takes as long as that.
const (
	freezeLimit = 3 * time.Second
	freezeAgain = 2 * time.Millisecond
)

// awaitFrozen waits until all in a frozen group stand still.
func (f freezer) awaitFrozen() error {
	if f == "" {
		return nil
	}
	for end := time.Now().Add(freezeLimit); ; time.Sleep(freezeAgain) {
		if still, err := f.settled(); still || err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("the processes in %s are not frozen within %s", f, freezeLimit)
		}
	}
}

// settled says whether a freeze has come to its end.
func (f freezer) settled() (bool, error) {
	text, err := os.ReadFile(filepath.Join(string(f), "freezer.state"))
	if err == nil {
		return strings.TrimSpace(string(text)) == "FROZEN", nil
	}
	if text, err = os.ReadFile(filepath.Join(string(f), "cgroup.events")); err != nil {
		return false, fmt.Errorf("ask whether the control group is frozen: %w", err)
	}
	return strings.Contains(string(text), "frozen 1"), nil
}
