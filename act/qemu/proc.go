// This file starts processes that outlive whoever started them, runs them as
// somebody who may do little, and finds, watches and ends them. It does not know
// what they are. Its tests run on processes of their own.

package qemu

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// DeathLimit is how long a killed process may take to be gone: it first gives its
// memory back.
const DeathLimit = 20 * time.Second

// Process names a process for good: a number alone may be given to another.
type Process struct {
	PID   int    `json:"pid"`
	Ticks uint64 `json:"ticks"` // when it began, in clock ticks since boot
}

// Account is whom a process runs as.
type Account struct {
	name     string
	UID, GID uint32
	groups   []uint32 // the group that may use /dev/kvm
}

// FindAccount finds it by its name.
func FindAccount(name string) (Account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return Account{}, fmt.Errorf("find the user that guests run as: %w; make it with: useradd --system --no-create-home --shell /usr/sbin/nologin %s", err, name)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return Account{}, fmt.Errorf("user %s: %w", name, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return Account{}, fmt.Errorf("user %s: %w", name, err)
	}
	if uid == 0 {
		return Account{}, fmt.Errorf("guests may not run as root; name another user than %s", name)
	}
	a := Account{name: name, UID: uint32(uid), GID: uint32(gid)}
	var st unix.Stat_t
	if unix.Stat("/dev/kvm", &st) == nil && st.Gid != 0 {
		a.groups = []uint32{st.Gid}
	}
	return a, nil
}

// Attributes cuts a child loose: own session, unprivileged, no terminal.
func (a Account) Attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Setsid:     true,
		Credential: &syscall.Credential{Uid: a.UID, Gid: a.GID, Groups: a.groups},
	}
}

// largestFile bounds what a guest can make its process write to this host's disk:
// its console. Beyond it the guest's words are lost.
const largestFile = 256 << 10

// refuseSilently lets a write beyond largestFile fail rather than end the process:
// what a process ignores, its children ignore.
var refuseSilently = sync.OnceFunc(func() { signal.Ignore(unix.SIGXFSZ) })

// Spawn starts a program in dir that outlives this one. Its output goes to
// log, files become its descriptors 3 and up. No file it writes can grow
// beyond largestFile.
func Spawn(a Account, dir string, command []string, log *os.File, files ...*os.File) (Process, error) {
	cmd := exec.Command("prlimit", append([]string{fmt.Sprintf("--fsize=%d", largestFile), "--"}, command...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = dir, log, log, files
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.SysProcAttr = a.Attributes()
	refuseSilently()
	if err := cmd.Start(); err != nil {
		return Process{}, fmt.Errorf("start %s: %w", command[0], err)
	}
	p := Process{PID: cmd.Process.Pid}
	st, err := readStat(p.PID)
	if err != nil {
		return Process{}, errors.Join(fmt.Errorf("start %s: %w", command[0], err), cmd.Process.Kill(), cmd.Wait())
	}
	p.Ticks = st.Ticks
	// Waiting is the business of whoever watches, this agent or the next.
	return p, cmd.Process.Release()
}

// Stat is what /proc says of a process.
type Stat struct {
	state byte
	CPU   time.Duration // used so far, all threads
	Ticks uint64
}

// userHz is the unit of times in /proc: 100 on every Linux platform Go knows.
const userHz = 100

// readStat reads it.
func readStat(pid int) (Stat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Stat{}, err
	}
	// The name, second, is in parentheses and may hold anything.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 || len(fields[0]) != 1 {
		return Stat{}, fmt.Errorf("/proc/%d/stat is not as expected", pid)
	}
	user, err1 := strconv.ParseUint(fields[11], 10, 64)
	system, err2 := strconv.ParseUint(fields[12], 10, 64)
	ticks, err3 := strconv.ParseUint(fields[19], 10, 64)
	return Stat{fields[0][0], time.Duration(user+system) * time.Second / userHz, ticks}, errors.Join(err1, err2, err3)
}

// IsGone reports whether Read found no such process. Its other errors are
// this process's own trouble.
func IsGone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// ResidentBytes is the host memory the process occupies; 0 if that cannot be
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

// HugeBytes is what it has of pages that were set aside, which ResidentBytes leaves out;
// 0 if that cannot be read.
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

// Watch opens a handle on the process. It is an os.ErrNotExist if that very
// process is gone.
func (p Process) Watch() (*os.File, error) {
	gone := fmt.Errorf("process %d: %w", p.PID, os.ErrNotExist)
	if p.PID <= 1 { // no guest: who ended it would end the machine, or every process
		return nil, gone
	}
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, gone
	}
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", p.PID, err)
	}
	// The handle is on whoever has the number now: is it still the same?
	st, err := readStat(p.PID)
	if err != nil && !IsGone(err) {
		unix.Close(fd)
		return nil, fmt.Errorf("watch process %d: %w", p.PID, err)
	}
	if err != nil || st.Ticks != p.Ticks || st.state == 'Z' || st.state == 'X' {
		reap(fd)
		unix.Close(fd)
		return nil, gone
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("process %d", p.PID)), nil
}

// Await returns when the process has ended (nil) or the handle was closed.
func Await(handle *os.File) error {
	raw, err := handle.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool { return ended(int(fd)) })
}

// ended asks without waiting, and reaps a child that has ended.
func ended(fd int) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(poll, 0); err != nil || n == 0 {
		return false
	}
	reap(fd)
	return true
}

// reap buries a child. A process that an earlier agent started is not ours to
// bury, and a second watcher comes too late: neither matters.
func reap(fd int) {
	_ = unix.Waitid(unix.P_PIDFD, fd, nil, unix.WEXITED|unix.WNOHANG, nil)
}

// Kill ends the process behind the handle. One that is gone is no error.
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

// processesIn gives the account's processes whose working directory is dir, such as one
// started by an agent that died before it could note its number.
func processesIn(a Account, dir string) []Process {
	var out []Process
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if unix.Stat("/proc/"+e.Name(), &st) != nil || st.Uid != a.UID {
			continue
		}
		if at, err := os.Readlink("/proc/" + e.Name() + "/cwd"); err != nil || at != dir {
			continue
		}
		if s, err := readStat(pid); err == nil {
			out = append(out, Process{pid, s.Ticks})
		}
	}
	return out
}

// End kills a process that nobody watches and waits until it is gone.
func (p Process) End() error {
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

// HasThread reports whether a thread's name begins with one of these words.
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

// unreadBytes reports whether there is something to be read in a file that a process
// has open under a number.
func unreadBytes(handle *os.File, number int) (some bool) {
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
