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
// ones, and a filter of system calls. So a source that was taken over cannot have a target resume
// programs with more rights, by mistake or by intent.
func Confined(pids []int) error {
	for _, pid := range pids {
		folder := fmt.Sprintf("/proc/%d/task", pid)
		threads, err := os.ReadDir(folder)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has ended
		}
		if err != nil {
			return err
		}
		for _, t := range threads {
			text, err := os.ReadFile(folder + "/" + t.Name() + "/status")
			if err != nil {
				return fmt.Errorf("see how thread %s is confined: %w", t.Name(), err)
			}
			if says := loose(string(text)); says != "" {
				return fmt.Errorf("process %d of the guest %s, as none does that was started here: it is not resumed", pid, says)
			}
		}
	}
	return nil
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
