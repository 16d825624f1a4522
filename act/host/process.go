package host

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// DeathLimit is how long a killed container may take to disappear: first its memory is
// freed.
const DeathLimit = 20 * time.Second

// Process identifies a process permanently: a PID alone may be reused.
type Process struct {
	PID   int    `json:"pid"`
	Ticks uint64 `json:"ticks"` // start time, in clock ticks since boot
}

// Find identifies the process that has a PID now.
func Find(pid int) (Process, error) {
	st, err := ReadStat(pid)
	return Process{pid, st.Ticks}, err
}

// Stat is what /proc reports about a process.
type Stat struct {
	CPU             time.Duration // used so far, by all its threads
	ChildCPU        time.Duration // used by children that ended
	Ticks           uint64        // start time, in clock ticks since boot
	state           byte
	parent, session int
}

// userHz is the number of clock ticks per second in /proc: 100 on every Linux platform of
// Go.
const userHz = 100

// ReadStat reads a process's Stat. IsGone reports whether its error means that the
// process does not exist.
func ReadStat(pid int) (Stat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Stat{}, err
	}
	// The second field, the name, is in parentheses and may contain anything.
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(f) < 20 || len(f[0]) != 1 {
		return Stat{}, fmt.Errorf("/proc/%d/stat is not as expected", pid)
	}
	s := Stat{state: f[0][0]}
	for i, to := range map[int]*int{1: &s.parent, 3: &s.session} {
		if *to, err = strconv.Atoi(f[i]); err != nil {
			return s, err
		}
	}
	for i, to := range map[int]*time.Duration{11: &s.CPU, 12: &s.CPU, 13: &s.ChildCPU, 14: &s.ChildCPU} {
		n, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil {
			return s, err
		}
		*to += time.Duration(n) * time.Second / userHz
	}
	s.Ticks, err = strconv.ParseUint(f[19], 10, 64)
	return s, err
}

// IsGone reports whether an error means that a process has ended. Other errors are
// problems of this process.
func IsGone(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// Watch opens a pidfd of the process. The error is os.ErrNotExist if this very process
// has ended.
func (p Process) Watch() (*os.File, error) {
	missing := fmt.Errorf("process %d: %w", p.PID, os.ErrNotExist)
	if p.PID <= 1 { // never a guest: killing it would end the machine, or every process
		return nil, missing
	}
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, missing
	}
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", p.PID, err)
	}
	// The PID may have been reused before the pidfd was opened, so the start time is
	// compared.
	st, err := ReadStat(p.PID)
	if err != nil && !IsGone(err) {
		unix.Close(fd)
		return nil, fmt.Errorf("watch process %d: %w", p.PID, err)
	}
	if err != nil || st.Ticks != p.Ticks || st.state == 'Z' || st.state == 'X' {
		reap(fd)
		unix.Close(fd)
		return nil, missing
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("process %d", p.PID)), nil
}

// Await returns nil when the process has ended, and an error when the handle was closed.
func Await(handle *os.File) error {
	_, err := AwaitExit(handle)
	return err
}

// AwaitExit is Await that says how the process ended.
func AwaitExit(handle *os.File) (e Exit, err error) {
	raw, err := handle.SyscallConn()
	if err != nil {
		return e, err
	}
	err = raw.Read(func(fd uintptr) (over bool) {
		over, e = ended(int(fd))
		return over
	})
	return e, err
}

// ended checks without waiting, and reaps a child that has ended.
func ended(fd int) (bool, Exit) {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(poll, 0); err != nil || n == 0 {
		return false, Exit{}
	}
	return true, reap(fd)
}

// Kill kills the process behind the handle. If that is a container's first process, all
// others of the container end, too. It is not an error if the process has ended.
func Kill(handle *os.File) error {
	raw, err := handle.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	if errors.Is(sent, unix.ESRCH) {
		sent = nil
	}
	return errors.Join(err, sent)
}

// Network opens the network namespace of a process. It returns nil if the process has
// ended.
func (p Process) Network() (*os.File, error) {
	handle, err := p.Watch()
	if err == nil {
		defer handle.Close()
		var network *os.File
		if network, err = os.Open(fmt.Sprintf("/proc/%d/ns/net", p.PID)); err == nil {
			return network, nil
		}
	}
	if IsGone(err) {
		err = nil
	}
	return nil, err
}

// Lives reports whether the process has not ended and is not about to. A frozen process
// that was killed is about to end, but cannot end yet.
func (p Process) Lives() bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID))
	for line := range strings.Lines(string(text)) {
		word, value, _ := strings.Cut(line, ":")
		if word != "SigPnd" && word != "ShdPnd" {
			continue
		}
		pending, wrong := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if wrong != nil || pending&(1<<(unix.SIGKILL-1)) != 0 {
			return false
		}
	}
	return err == nil && !p.Gone() // asked last: it is still the same process
}

// Gone reports whether the process has ended. It is true for the zero Process.
func (p Process) Gone() bool {
	handle, err := p.Watch()
	if err == nil {
		handle.Close()
	}
	return errors.Is(err, os.ErrNotExist)
}

// End kills a process that is not watched, and waits until it has ended. It does nothing
// for the zero Process.
func (p Process) End() error {
	if p.PID == 0 {
		return nil
	}
	handle, err := p.Watch()
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer handle.Close()
	if err := Kill(handle); err != nil {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	if err := handle.SetReadDeadline(time.Now().Add(DeathLimit)); err != nil {
		return fmt.Errorf("wait for process %d: %w", p.PID, err)
	}
	if err := Await(handle); err != nil {
		return fmt.Errorf("process %d was killed and does not end: %w", p.PID, err)
	}
	return nil
}

// ResidentBytes returns the host memory that the process occupies, or 0 if that cannot be
// read.
func (p Process) ResidentBytes() int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.PID))
	if err != nil {
		return 0
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		return 0
	}
	return resident * int64(os.Getpagesize())
}

// HugeBytes returns the bytes of reserved huge pages that the process uses, which
// ResidentBytes does not include. It returns 0 if that cannot be read.
func (p Process) HugeBytes() int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID))
	if err != nil {
		return 0
	}
	_, after, _ := bytes.Cut(text, []byte("\nHugetlbPages:"))
	var kib int64
	if _, err := fmt.Sscan(string(after), &kib); err != nil {
		return 0
	}
	return kib << 10
}

// IsNamed reports whether a process was started under a name, which is its first argument.
func IsNamed(pid int, name string) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.HasPrefix(string(line), name+"\x00")
}

// HasThread reports whether the name of one of the threads begins with one of these
// words.
func (p Process) HasThread(names ...string) bool {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", p.PID)) // a constant pattern is well-formed
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(string(text), name) }) {
			return true
		}
	}
	return false
}

// Unread reports whether a process's descriptor has data to be read.
func Unread(handle *os.File, number int) (some bool) {
	raw, err := handle.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(process uintptr) {
		fd, err := unix.PidfdGetfd(int(process), number, 0)
		if err != nil {
			return
		}
		defer unix.Close(fd)
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 0)
		some = err == nil && n > 0 && poll[0].Revents&unix.POLLIN != 0
	})
	return some
}
