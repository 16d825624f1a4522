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

// KillAll kills processes, the newest first, but for one and for this one: a CRIU that holds
// others has been there before them, and when it ends they run. One that is not there is
// no error.
func KillAll(all []int, spared int) error {
	all = slices.Compact(slices.Sorted(slices.Values(all)))
	for _, pid := range slices.Backward(all) {
		if pid == spared || pid == os.Getpid() {
			continue
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
	}
	return nil
}

// EndSession ends the processes of a session but its leader, which has ended or is
// somebody else's to end, and first if it is a child of this process; those that are
// children of it are buried. It returns when none is left. There are none of session 0:
// the kernel's are of it, and those of others' namespaces.
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

// endOnce kills what there is now, and gives one that has not ended yet; 0: all have.
// A process may just have been made by one that was killed.
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
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // it may be frozen, or somebody else has done so
		}
	}
	return left, nil
}
