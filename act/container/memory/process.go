package memory

import (
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

// process is one process whose memory is copied.
type process struct {
	pid    int    // here
	number uint32 // in its own namespace
	folder folder
	uffd   int    // tracks it; -1: it is not tracked
	passed bool   // there was a pass since it is tracked
	asked  int    // for a userfaultfd, so many times
	why    string // it is not tracked
	sent   []area // what was there at the last pass
	// doubt is where the kernel refused to go on in the middle of a window: what came before
	// counts as sent, and was not. All of it is sent at the next pass.
	doubt []area
}

// mostAsked is how often a process is asked that cannot be tracked: one that is
// just beginning a program may be later.
const mostAsked = 3

// openProcess finds a process and its number inside.
func openProcess(pid int) (*process, error) {
	f, err := openFolder(pid)
	if err != nil {
		return nil, err
	}
	p := &process{pid: pid, folder: f, uffd: -1}
	words, err := f.status("NSpid")
	if err == nil && len(words) == 0 {
		err = errEnded
	}
	if err == nil {
		var number uint64
		number, err = strconv.ParseUint(words[len(words)-1], 10, 32)
		p.number = uint32(number)
	}
	if err != nil {
		f.close()
		return nil, err
	}
	return p, nil
}

// alive reports whether it is still there: neither gone nor waiting to be waited
// for.
func (p *process) alive() bool {
	words, err := p.folder.status("State")
	return err == nil && len(words) > 0 && words[0] != "Z" && words[0] != "X"
}

// shares reports whether two processes have the same memory, as after vfork.
// Only one of them may be tracked: each pass over one would hide from the other
// what was written.
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
