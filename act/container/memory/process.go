package memory

import (
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

// process is one process whose memory is copied.
type process struct {
	pid    int    // on this host
	number uint32 // in its own pid namespace
	folder folder
	uffd   int    // tracks it; -1: none does
	passed bool   // a pass was made while it was tracked
	asked  int    // how often it was asked for a userfaultfd
	why    string // why it is not tracked
	sent   []area // its areas at the last pass
	// doubt lists areas in which the kernel stopped a scan in the middle of a window:
	// pages before that point count as sent and were not. The next pass sends all of
	// them.
	doubt []area
}

// mostAsked is how often an untrackable process is asked. A process that is just
// executing a program may be trackable later.
const mostAsked = 3

// openProcess opens a process and finds its number in its own namespace.
func openProcess(pid int) (*process, error) {
	f, err := openFolder(pid)
	if err != nil {
		return nil, err
	}
	p := &process{pid: pid, folder: f, uffd: -1}
	words, err := f.status("NSpid")
	if err == nil {
		p.number, err = ownNumber(words)
	}
	if err != nil {
		f.close()
		return nil, err
	}
	return p, nil
}

// ownNumber returns a process's number in its own namespace, the last of its numbers. It is
// 0 in all namespaces once the process's parent has waited for it.
func ownNumber(words []string) (uint32, error) {
	if len(words) == 0 {
		return 0, errEnded
	}
	number, err := strconv.ParseUint(words[len(words)-1], 10, 32)
	if err == nil && number == 0 {
		err = errEnded
	}
	return uint32(number), err
}

// alive reports whether the process exists and is not a zombie.
func (p *process) alive() bool {
	words, err := p.folder.status("State")
	return err == nil && len(words) > 0 && words[0] != "Z" && words[0] != "X"
}

// shares reports whether two processes have the same memory, as after vfork. Only one of
// them may be tracked: each pass over one would hide written pages from the other.
func (p *process) shares(q *process) (bool, error) {
	const kcmpVM = 1 // include/uapi/linux/kcmp.h
	differ, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(p.pid), uintptr(q.pid), kcmpVM, 0, 0, 0)
	if errors.Is(errno, unix.ESRCH) {
		return false, nil
	}
	if errno != 0 {
		return true, errno
	}
	return differ == 0, nil
}

func (p *process) untrack() {
	if p.uffd >= 0 {
		_ = unix.Close(p.uffd)
	}
	p.uffd, p.passed, p.doubt = -1, false, nil
}

func (p *process) close() {
	p.untrack()
	p.folder.close()
}
