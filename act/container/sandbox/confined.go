package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// onceKept is the capability that containers of an earlier Pagurus have beside those of today.
const onceKept = unix.CAP_FSETID

// Confined returns an error unless each thread of these processes, which have come from another host, is
// confined as one that was started here: no capability beyond those of a container's root, no new
// ones, and a filter of system calls, which Known has seen. Each process is in the namespaces of the first, which are none of this host's,
// and has no higher limits. So a source that was taken over cannot have a target resume
// programs with more rights, by mistake or by intent.
func Confined(pids []int) error {
	for _, pid := range pids {
		says, err := strays(pid, pids[0])
		if err == nil && says == "" {
			says, err = looseThreads(pid)
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return fmt.Errorf("see how process %d is confined: %w", pid, err)
		}
		if says != "" {
			return fmt.Errorf("process %d of the guest %s, as none does that was started here: it is not resumed", pid, says)
		}
	}
	return nil
}

// looseThreads says what a thread of a process may do beyond what a container's may; empty: nothing.
func looseThreads(pid int) (string, error) {
	folder := fmt.Sprintf("/proc/%d/task", pid)
	threads, err := os.ReadDir(folder)
	for _, t := range threads {
		text, err := os.ReadFile(folder + "/" + t.Name() + "/status")
		if err != nil {
			return "", err
		}
		says := loose(string(text))
		if says == "" {
			says, err = hasty(t.Name())
		}
		if says != "" || err != nil {
			return says, err
		}
	}
	return "", err
}

// hasty says how a thread is scheduled before those of a container; empty: it is not. Images of CRIU have it, and it is restored by root.
func hasty(thread string) (string, error) {
	tid, err := strconv.Atoi(thread)
	if err != nil {
		return "", err
	}
	is, err := unix.SchedGetAttr(tid, 0)
	if err != nil {
		return "", err
	}
	ours, err := unix.SchedGetAttr(0, 0) // which a container that was started here has at first
	if err != nil {
		return "", err
	}
	switch is.Policy {
	case unix.SCHED_NORMAL, unix.SCHED_BATCH:
		if is.Nice < min(0, ours.Nice) {
			return fmt.Sprintf("is scheduled with the nice value %d", is.Nice), nil
		}
	case unix.SCHED_IDLE:
	default:
		return fmt.Sprintf("is scheduled by the policy %d", is.Policy), nil
	}
	return "", nil
}

// own are the namespaces that a container has of its own.
var own = []string{"ipc", "mnt", "net", "pid", "uts"}

// strays says which namespace or limit a process has that a container's has not; empty: none.
func strays(pid, first int) (string, error) {
	for _, kind := range append([]string{"user"}, own...) {
		is, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
		if err != nil {
			return "", err
		}
		ours, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return "", err
		}
		wants := ours // a container has no user namespace
		if kind != "user" {
			if is == ours {
				return "is in this host's namespace " + is, nil
			}
			if wants, err = os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", first, kind)); err != nil {
				return "", err
			}
		}
		if is != wants {
			return "is in the namespace " + is + " of its own", nil
		}
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return "", err
	}
	return higher(string(text)), nil
}

// higher says which of a process's limits, given their text in /proc, is above a container's; empty: none.
func higher(text string) string {
	for _, l := range limits {
		_, rest, found := strings.Cut(text, "\n"+l.name+"  ")
		words := strings.Fields(rest) // what holds now, and the most that it can be raised to
		if !found || len(words) < 2 {
			return "does not say its limits"
		}
		if most, err := strconv.ParseUint(words[1], 10, 64); err != nil || most > l.most {
			return fmt.Sprintf("has a higher limit (%s) of %s", l.name, words[1])
		}
	}
	return ""
}

// loose says what a thread, given its status in /proc, may do beyond what a container's may; empty: nothing.
func loose(status string) string {
	most := uint64(1) << onceKept
	for _, c := range kept {
		most |= 1 << c
	}
	found := 0
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		switch name {
		case "State":
			if strings.HasPrefix(value, "Z") || strings.HasPrefix(value, "X") {
				return "" // it has ended, and the kernel keeps none of the rest
			}
		case "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb":
			has, err := strconv.ParseUint(value, 16, 64)
			if err != nil || has&^most != 0 {
				return fmt.Sprintf("has the capabilities %s (%s)", value, name)
			}
		case "NoNewPrivs":
			if value != "1" {
				return "may get new privileges"
			}
		case "Seccomp":
			if value != strconv.Itoa(unix.SECCOMP_MODE_FILTER) {
				return "may make every system call"
			}
		default:
			continue
		}
		found++
	}
	if found < 8 {
		return "does not say what it may do"
	}
	return ""
}
