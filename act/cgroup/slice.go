// This file sets the time slice of guests' normal threads, which Linux supports since 6.12, and counts how they fare. It does
// not know why. Its tests use the kernel.

package cgroup

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
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

// Slice gives a guest's threads whose names which accepts a time slice; nil accepts all, 0 is the kernel's own. The guest must have been
// placed; later threads inherit the slice. A kernel without slices is not asked. After an error some threads may have it; call again.
func (g *Groups) Slice(guest fleet.GuestID, d time.Duration, which func(thread string) bool) error {
	if !g.slices {
		return nil
	}
	at, err := g.of(guest)
	var pids []int
	if err == nil {
		pids, err = g.tree.processes(at)
	}
	errs := []error{err}
	for _, pid := range pids {
		errs = append(errs, sliceProcess(pid, d, which))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("give guest %s its time slice: %w", guest, err)
	}
	return nil
}

// Count is how a guest's threads fared since this process first counted them.
type Count struct {
	Ran       time.Duration
	Waited    time.Duration // to run
	Slept     uint64        // how often a thread gave up its CPU
	Preempted uint64        // how often one was displaced
}

// counted is what was counted of a guest's threads.
type counted struct {
	sum     Count
	threads map[int]Count
}

// Count counts the threads of a guest whose names which accepts; nil: all. Of a thread that began and ended between two calls nothing is
// known. false: nothing is known at all, because the guest is not there, or the kernel does not count (CONFIG_SCHED_INFO).
func (g *Groups) Count(guest fleet.GuestID, which func(thread string) bool) (Count, bool) {
	at, err := g.of(guest)
	var pids []int
	if err == nil {
		pids, err = g.tree.processes(at)
	}
	now := map[int]Count{}
	for _, pid := range pids {
		countProcess(pid, which, now)
	}
	if err != nil || len(now) == 0 {
		return Count{}, false
	}
	g.counting.Lock()
	defer g.counting.Unlock()
	was, known := g.counted[guest]
	if !known {
		if was = new(counted); g.counted == nil {
			g.counted = map[fleet.GuestID]*counted{}
		}
		g.counted[guest] = was
	}
	for tid, n := range now {
		if before := was.threads[tid]; n.Ran >= before.Ran && n.Waited >= before.Waited && n.Slept >= before.Slept && n.Preempted >= before.Preempted { // else it is another one
			n.Ran, n.Waited, n.Slept, n.Preempted = n.Ran-before.Ran, n.Waited-before.Waited, n.Slept-before.Slept, n.Preempted-before.Preempted
		}
		s := &was.sum
		s.Ran, s.Waited, s.Slept, s.Preempted = s.Ran+n.Ran, s.Waited+n.Waited, s.Slept+n.Slept, s.Preempted+n.Preempted
	}
	was.threads = now
	return was.sum, true
}

// ForgetCounts forgets what was counted of all guests but these.
func (g *Groups) ForgetCounts(but func(fleet.GuestID) bool) {
	g.counting.Lock()
	defer g.counting.Unlock()
	maps.DeleteFunc(g.counted, func(id fleet.GuestID, _ *counted) bool { return !but(id) })
}

// countProcess counts a process's threads; one that ends meanwhile is left out.
func countProcess(pid int, which func(name string) bool, out map[int]Count) {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return
	}
	for _, t := range threads {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		dir := fmt.Sprintf("/proc/%d/task/%d/", pid, tid)
		times, err := os.ReadFile(dir + "schedstat")
		if err != nil {
			continue
		}
		status, err := os.ReadFile(dir + "status")
		if err != nil {
			continue
		}
		if c, name, ok := readCount(string(times), string(status)); ok && (which == nil || which(name)) {
			out[tid] = c
		}
	}
}

// readCount reads a thread's schedstat and status.
func readCount(times, status string) (c Count, name string, ok bool) {
	f := strings.Fields(times)
	if len(f) < 2 {
		return c, "", false
	}
	ran, err1 := strconv.ParseInt(f[0], 10, 64)
	waited, err2 := strconv.ParseInt(f[1], 10, 64)
	c.Ran, c.Waited = time.Duration(ran), time.Duration(waited)
	errs := []error{err1, err2}
	found := 0
	for line := range strings.Lines(status) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		var err error
		switch key {
		case "Name":
			name = value
		case "voluntary_ctxt_switches":
			c.Slept, err = strconv.ParseUint(value, 10, 64)
			found++
		case "nonvoluntary_ctxt_switches":
			c.Preempted, err = strconv.ParseUint(value, 10, 64)
			found++
		}
		errs = append(errs, err)
	}
	return c, name, found == 2 && errors.Join(errs...) == nil
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
