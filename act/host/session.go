package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Ticks is the start time of a process that starts now.
func Ticks() uint64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err) // no Linux that runs guests is without it
	}
	return uint64(t.Nano()) / uint64(time.Second/userHz)
}

// KillAll kills processes, the newest first, except spared and this process. A CRIU that
// traces others is older than they are, and when it ends they run. It is not an error if
// a process does not exist. looked is from before they were looked for: a process that
// started later has a number that was one of theirs, and is left alone.
func KillAll(all []int, spared int, looked uint64) error {
	all = slices.Compact(slices.Sorted(slices.Values(all)))
	for _, pid := range slices.Backward(all) {
		if pid == spared || pid == os.Getpid() {
			continue
		}
		if err := killOlder(pid, looked); err != nil && !IsGone(err) {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
	}
	return nil
}

// killOlder kills the process that has a number now, unless it started after a time.
func killOlder(pid int, looked uint64) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	st, err := ReadStat(pid)
	if err != nil || st.Ticks > looked {
		return err
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}

// EndSession kills the processes of a session except its leader, which has ended or is
// left to another to end. It also kills first, if that is a child of this process. It
// reaps those that are children of this process. It returns when none is left. It does
// nothing for session 0, which holds the kernel's processes and those of other
// namespaces.
func EndSession(leader, first int) error {
	if leader <= 0 {
		return nil
	}
	for end := time.Now().Add(DeathLimit); ; time.Sleep(time.Millisecond) {
		left, err := endOnce(leader, first)
		if err != nil || left == 0 {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("process %d of session %d was killed and does not end", left, leader)
		}
	}
}

// endOnce kills the processes that exist now, and returns one that has not ended yet, or
// 0 if all have. A killed process may just have made another one.
func endOnce(leader, first int) (left int, err error) {
	all, _ := filepath.Glob("/proc/[0-9]*") // a constant pattern is well-formed
	for _, dir := range all {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		st, err := ReadStat(pid)
		own := err == nil && st.parent == os.Getpid()
		if err != nil || pid == leader || st.session != leader && (pid != first || !own) || st.state == 'Z' && !own {
			continue
		}
		left = pid
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return left, fmt.Errorf("end process %d: %w", pid, err)
		}
		if own {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // it may be frozen, or already reaped
		}
	}
	return left, nil
}
