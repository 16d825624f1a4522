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

	"pagurus/act/host"
)

// Heal repairs TCP connections after a CRIU was killed during a dump. CRIU had put them
// into repair mode to read their state. Until they are healed, reading and writing fail
// with "operation not permitted", and a process that tries may give up. So the processes
// should be in a frozen control group when CRIU is killed. Only the process that kills
// CRIU can arrange that. pid is the container's first process.
//
// The kernel undid everything else when CRIU died. The code that CRIU puts into a process
// returns to the process's own code once its connection to CRIU is gone; only the memory
// of that code stays behind.
//
// Heal does no harm to healthy connections. It may be called at any time when no dump of
// the container runs, for example when an agent finds a container whose agent died.
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

// releaseLimit is how long a CRIU whose caller died may take to notice. It notices at its
// next step, unless it hangs.
const (
	releaseLimit = 5 * time.Second
	releaseAgain = 10 * time.Millisecond
)

// Release makes sure that no CRIU holds the container with this first process any more.
// An agent calls it for a container whose agent died. It waits until CRIU has undone what
// it did; otherwise it ends CRIU as Dump would. folder is as DumpSpec.Freezer. Afterwards
// the container is running, or frozen if it was frozen before the dump, with all its
// connections. If CRIU had to be ended the container is frozen in any case. It is not an
// error if no CRIU holds it. It is an error if another process still traces it after the
// helpers that the dead agent started beside CRIU have had time to end.
func (c Criu) Release(ctx context.Context, pid int, folder string) error {
	wrap := func(err error) error { return fmt.Errorf("release process %d from criu: %w", pid, err) }
	tracer, err := c.tracer(pid)
	group := host.Freezer(folder)
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
			err = errors.Join(returnThreads(group, pid), Heal(pid)) // CRIU may have been killed, too
		}
		if err != nil {
			return wrap(err)
		}
		return nil
	}
	// CRIU has thawed the group, so its earlier state is unknown.
	handle, err := unix.PidfdOpen(tracer, 0)
	if err != nil {
		return wrap(err)
	}
	defer unix.Close(handle)
	err = group.Set(true)
	if err == nil {
		err = ignoreGone(unix.PidfdSendSignal(handle, unix.SIGKILL, nil, 0))
	}
	for end := time.Now().Add(releaseLimit); err == nil && time.Now().Before(end); time.Sleep(releaseAgain) {
		if tracer, err = c.tracer(pid); tracer == 0 {
			break
		}
	}
	if err == nil {
		err = errors.Join(returnThreads(group, pid), group.Freeze(), Heal(pid))
	}
	if err != nil {
		return wrap(err)
	}
	return nil
}

// tracer returns the PID of the CRIU that traces a process, or 0 if none does.
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
	exe, _ = strings.CutSuffix(exe, " (deleted)") // replaced by a newer one
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

// isGone reports whether an error means that a process does not exist or has ended.
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
	// The kernel at once asks the peer whether it missed something.
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 0); err != nil {
		return fmt.Errorf("let it go on: %w", err)
	}
	return nil
}
