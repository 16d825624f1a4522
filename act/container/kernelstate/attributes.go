package kernelstate

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pagurus/act/container/memory"
)

// attributes are attributes of processes and threads that CRIU does not dump and that can be
// read and set from outside. Only those that differ from the container's first process are
// recorded. The others were never set, and defaults may differ between hosts.
type attributes struct {
	Threads   []attributesOf
	Processes []filterOf
}

// attributesOf holds a thread's attributes. A nil attribute was never set.
type attributesOf struct {
	Process, Inside int // numbers in the container
	CPUs            *unix.CPUSet
	IOPriority      *int // as in ioprio_set(2)
	SlackNS         *string
	Schedule        *unix.SchedAttr
	Personality     *uint64 // only the thread itself can set it and its memory policy
	Memory          *policy
}

// filterOf says which memory of a process a core dump contains.
type filterOf struct {
	Inside int
	Cores  string
}

// Constants of sched_setattr(2), from linux/sched.h.
const (
	schedFair  = 0
	schedBatch = 3
	clamped    = unix.SCHED_FLAG_UTIL_CLAMP_MIN | unix.SCHED_FLAG_UTIL_CLAMP_MAX
)

// usual holds the attributes of a thread that never set them.
type usual struct {
	cpus  unix.CPUSet
	slack string
	slice uint64
	cores string
}

func noteAttributes(c *Container) (any, error) {
	if len(c.Processes) == 0 {
		return nil, nil
	}
	first := c.Processes[0].PID
	var u usual
	err := unix.SchedGetaffinity(first, &u.cpus)
	if err == nil {
		u.slack, err = setting(first, "timerslack_ns")
	}
	if err == nil {
		u.cores, err = setting(first, "coredump_filter")
	}
	if err != nil {
		return nil, fmt.Errorf("ask for the attributes of process %d in the container: %w", c.Processes[0].Inside, err)
	}
	if s, err := unix.SchedGetAttr(first, 0); err == nil {
		u.slice = s.Runtime
	}
	var all attributes
	for _, p := range c.Processes {
		for _, t := range p.Threads {
			if a := u.noteThread(t.TID); a != (attributesOf{}) {
				a.Process, a.Inside = p.Inside, t.Inside
				all.Threads = append(all.Threads, a)
			}
		}
		if cores, err := setting(p.PID, "coredump_filter"); err == nil && cores != "" && cores != u.cores { // empty: it has ended
			all.Processes = append(all.Processes, filterOf{p.Inside, cores})
		}
	}
	if len(all.Threads)+len(all.Processes) == 0 {
		return nil, nil
	}
	return all, nil
}

// noteThread returns the attributes that a thread has set. A thread that has ended has none.
func (u usual) noteThread(tid int) (a attributesOf) {
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(tid, &cpus); err == nil && cpus != u.cpus {
		a.CPUs = &cpus
	}
	if p, err := ioPriority(tid); err == nil && p != 0 {
		a.IOPriority = &p
	}
	if slack, err := setting(tid, "timerslack_ns"); err == nil && slack != u.slack {
		a.SlackNS = &slack
	}
	if s, err := unix.SchedGetAttr(tid, 0); err == nil && u.odd(s) {
		a.Schedule = s
	}
	if text, err := setting(tid, "personality"); err == nil {
		if is, err := strconv.ParseUint(text, 16, 32); err == nil && is != 0 {
			a.Personality = &is
		}
	}
	if p := memoryPolicy(tid); p != (policy{}) {
		a.Memory = &p
	}
	return a
}

// odd reports whether a thread's schedule has values that CRIU does not restore.
func (u usual) odd(s *unix.SchedAttr) bool {
	sliced := (s.Policy == schedFair || s.Policy == schedBatch) && s.Runtime != u.slice
	return sliced || s.Flags&clamped != 0 || s.Util_min != 0 || s.Util_max != 0 && s.Util_max != 1024
}

// setting reads a file in /proc of a process or thread.
func setting(pid int, name string) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	return strings.TrimSpace(string(text)), err
}

const (
	// ioPriorityOf says that a number is a thread's (IOPRIO_WHO_PROCESS).
	ioPriorityOf = 1
	ioClassShift = 13
	ioRealTime   = 1
)

func ioPriority(tid int) (int, error) {
	p, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, ioPriorityOf, uintptr(tid), 0)
	if errno != 0 {
		return 0, errno
	}
	return int(p), nil
}

func restoreAttributes(c *Container, text []byte) error {
	var all attributes
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	for _, f := range all.Processes {
		p, ok := c.Process(f.Inside)
		if !ok {
			return fmt.Errorf("process %d in the container is not there", f.Inside)
		}
		value := "0x" + strings.TrimPrefix(f.Cores, "0x") // it is read as hexadecimal without the prefix
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/coredump_filter", p.PID), []byte(value), 0); err != nil {
			return fmt.Errorf("set which memory core dumps of process %d in the container have: %w", f.Inside, err)
		}
	}
	for _, a := range all.Threads {
		tid, err := c.thread(a.Process, a.Inside)
		if err == nil {
			err = errors.Join(a.schedule(tid, c), a.settings(tid))
		}
		if err != nil {
			return fmt.Errorf("thread %d of process %d in the container: %w", a.Inside, a.Process, err)
		}
		if a.Memory != nil {
			if err := a.remember(tid, c); err != nil {
				return fmt.Errorf("thread %d of process %d in the container: %w", a.Inside, a.Process, err)
			}
		}
		if a.Personality != nil {
			c.rest.Calls = append(c.rest.Calls, memory.Call{Thread: tid, Number: unix.SYS_PERSONALITY, Arguments: [3]uint64{*a.Personality}})
		}
	}
	return nil
}

// thread finds a thread by its numbers in the container.
func (c *Container) thread(process, inside int) (int, error) {
	p, _ := c.Process(process)
	for _, t := range p.Threads {
		if t.Inside == inside {
			return t.TID, nil
		}
	}
	return 0, errors.New("it is not there")
}

// schedule sets the thread's CPUs and time slice. It uses those of its CPUs that this host also
// has; if there are none, all.
func (a attributesOf) schedule(tid int, c *Container) error {
	if a.CPUs != nil {
		var here, both unix.CPUSet
		if err := unix.SchedGetaffinity(tid, &here); err != nil {
			return fmt.Errorf("ask which processors it may have: %w", err)
		}
		for i := range here {
			both[i] = here[i] & a.CPUs[i]
		}
		if both.Count() < a.CPUs.Count() {
			c.say("thread %d of process %d was bound to %d processors, and this host gives it %d of them", a.Inside, a.Process, a.CPUs.Count(), both.Count())
		}
		if both.Count() > 0 {
			if err := unix.SchedSetaffinity(tid, &both); err != nil {
				return fmt.Errorf("bind it to its processors: %w", err)
			}
		}
	}
	if a.Schedule == nil {
		return nil
	}
	s := *a.Schedule
	// CRIU has restored the rest, which Confined has judged: the source's word gives nobody a real-time schedule.
	now, err := unix.SchedGetAttr(tid, 0)
	if err != nil {
		return fmt.Errorf("ask for its schedule: %w", err)
	}
	s.Policy, s.Nice, s.Priority, s.Deadline, s.Period = now.Policy, now.Nice, now.Priority, now.Deadline, now.Period
	if s.Flags &= clamped | unix.SCHED_FLAG_RESET_ON_FORK; now.Policy != schedFair && now.Policy != schedBatch {
		s.Runtime = now.Runtime
	}
	if s.Util_min != 0 || s.Util_max != 0 && s.Util_max != 1024 {
		s.Flags |= clamped
	}
	if err := unix.SchedSetAttr(tid, &s, 0); err != nil {
		return fmt.Errorf("set its time slice: %w", err)
	}
	return nil
}

func (a attributesOf) settings(tid int) error {
	if a.IOPriority != nil {
		if class := *a.IOPriority >> ioClassShift; class == ioRealTime {
			return fmt.Errorf("its I/O priority %#x is one of real time, which no program of a container may have", *a.IOPriority)
		}
		if _, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, ioPriorityOf, uintptr(tid), uintptr(*a.IOPriority)); errno != 0 {
			return fmt.Errorf("set its I/O priority: %w", errno)
		}
	}
	if a.SlackNS != nil {
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/timerslack_ns", tid), []byte(*a.SlackNS), 0); err != nil {
			return fmt.Errorf("set its timer slack: %w", err)
		}
	}
	return nil
}
