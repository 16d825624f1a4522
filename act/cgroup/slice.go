// This file sets the time slice of normal threads, which Linux supports since 6.12. It
// does not know whose threads they are. Its tests use the kernel.

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

// The kernel's limits for slices.
const (
	leastSlice = 100 * time.Microsecond
	mostSlice  = 100 * time.Millisecond
)

// policyNormal and policyBatch are the policies with a slice.
const (
	policyNormal = 0
	policyBatch  = 3
)

// flagResetOnFork is preserved.
const flagResetOnFork = 1

// setSlice sets a thread's slice; 0: the kernel's. It ignores threads of a real-time or
// idle class, and threads that have ended. New threads inherit the slice.
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

// threadSlice is a thread's slice; 0: the kernel's.
func threadSlice(tid int) (time.Duration, error) {
	a, err := unix.SchedGetAttr(tid, 0)
	if err != nil {
		return 0, fmt.Errorf("read the time slice of thread %d: %w", tid, err)
	}
	return time.Duration(a.Runtime), nil
}

// sliceProcess sets the slice of a process's threads whose names which accepts; nil: all.
// A process that has ended is not an error.
func sliceProcess(pid int, d time.Duration, which func(name string) bool) error {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil // it has ended
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
// tries it on a thread of its own.
func SlicesMissing() string {
	said := make(chan string, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its slice
		said <- try(unix.Gettid())
	}()
	return <-said
}

func try(tid int) string {
	const probe = 21 * time.Millisecond
	// This program may be in a class without slices.
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
	// A kernel without slices accepts the call and ignores the value.
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
