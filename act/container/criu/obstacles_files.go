package criu

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// counted returns a sentence if CRIU would change an eventfd, otherwise "".
func counted(who string, pid int, number string) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, number))
	if field(text, "eventfd-semaphore:") != "1" {
		return ""
	}
	return who + " has an eventfd that is a semaphore (EFD_SEMAPHORE), which cannot move: let it close that, or use one without, or a semaphore of POSIX; a job with --kind vm moves with it"
}

// pipeOfJob returns a sentence if the process has a named pipe of the job's files open.
// The target has the same pipe with its content, which CRIU would add a second time.
func (s subject) pipeOfJob(path, name string) string {
	st, err := statx(path)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return ""
	}
	for _, j := range s.same {
		if device64(st) != j.device {
			continue
		}
		if mounts, err := mountsAt(s.pid, j.At); err == nil && slices.Contains(mounts, st.Mnt_id) {
			return fmt.Sprintf("%s has the named pipe %s open, which is one of the job's files: let it close the pipe, or make it in /tmp", s.name, printable(name))
		}
	}
	return ""
}
