// This file sets for how long a thread may run before the kernel looks
// whether it is another's turn: a normal thread's time slice, which Linux takes
// since 6.12. It knows nothing of whose threads they are. Its tests run against
// the kernel.

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel keeps slices between these.
const (
	leastSlice = 100 * time.Microsecond
	mostSlice  = 100 * time.Millisecond
)

// policyNormal and policyBatch are the policies whose threads have a slice.
const (
	policyNormal = 0
	policyBatch  = 3
)

// flagResetOnFork is kept as it is.
const flagResetOnFork = 1

// setSlice gives a thread its slice; 0 is the kernel's own. A thread that is of a
// real-time or idle class, or is gone, is left as it is. Threads it starts from
// then on have the same.
func setSlice(tid int, d time.Duration) error {
	a, err := unix.SchedGetAttr(tid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err == nil && (a.Policy == policyNormal || a.Policy == policyBatch) {
		a.Size = unix.SizeofSchedAttr
		a.Flags &= flagResetOnFork
		a.Runtime, a.Deadline, a.Period = 0, 0, 0
		if d > 0 {
			a.Runtime = uint64(min(max(d, leastSlice), mostSlice))
		}
		err = unix.SchedSetAttr(tid, a, 0)
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("set the time slice of thread %d: %w", tid, err)
	}
	return nil
}

// threadSlice is the slice that a thread was given; 0: it has the kernel's own.
func threadSlice(tid int) (time.Duration, error) {
	a, err := unix.SchedGetAttr(tid, 0)
	if err != nil {
		return 0, fmt.Errorf("read the time slice of thread %d: %w", tid, err)
	}
	return time.Duration(a.Runtime), nil
}

// sliceProcess sets the slice of those threads of a process that which picks by their
// names; nil: of all. A process that is gone is no error.
func sliceProcess(pid int, d time.Duration, which func(name string) bool) error {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil // it is gone
	}
	var errs []error
	for _, t := range threads {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		if which != nil {
			name, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/comm", pid, tid))
			if err != nil || !which(strings.TrimSpace(string(name))) {
				continue
			}
		}
		errs = append(errs, setSlice(tid, d))
	}
	return errors.Join(errs...)
}

// SlicesMissing says why slices have no effect here, for people; empty: they have. It
// tries one out on a thread of its own.
func SlicesMissing() string {
	said := make(chan string, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its slice
		said <- try(unix.Gettid())
	}()
	return <-said
}

func try(tid int) string {
	const probe = 21 * time.Millisecond
	// This program may be of a class that has no slices.
	normal := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: policyNormal}
	if a, err := unix.SchedGetAttr(tid, 0); err == nil {
		normal.Nice = a.Nice
	}
	if err := unix.SchedSetAttr(tid, &normal, 0); err != nil {
		return err.Error()
	}
	if err := setSlice(tid, probe); err != nil {
		return err.Error()
	}
	// A kernel that knows no slices takes the call and forgets the number.
	if got, err := threadSlice(tid); err != nil {
		return err.Error()
	} else if got != probe {
		return "the kernel (" + release() + ") has no time slices of threads' own; they come with Linux 6.12"
	}
	return ""
}

func release() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return strings.TrimRight(string(u.Release[:]), "\x00")
}
