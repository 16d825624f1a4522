package qemu

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process names a process for good: a number alone may be given to another.
type process struct {
	PID   int    `json:"pid"`
	Ticks uint64 `json:"ticks"` // when it began, in clock ticks since boot
}

// account is the user that QEMU runs as.
type account struct {
	name     string
	uid, gid uint32
	groups   []uint32 // the group that may use /dev/kvm
}

func findAccount(name string) (account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return account{}, fmt.Errorf("find the user that guests run as: %w; make it with: useradd --system --no-create-home --shell /usr/sbin/nologin %s", err, name)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return account{}, fmt.Errorf("user %s: %w", name, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return account{}, fmt.Errorf("user %s: %w", name, err)
	}
	if uid == 0 {
		return account{}, fmt.Errorf("guests may not run as root; name another user than %s", name)
	}
	a := account{name: name, uid: uint32(uid), gid: uint32(gid)}
	var st unix.Stat_t
	if unix.Stat("/dev/kvm", &st) == nil && st.Gid != 0 {
		a.groups = []uint32{st.Gid}
	}
	return a, nil
}

// attributes cuts a child loose: own session, unprivileged, no terminal.
func (a account) attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Setsid:     true,
		Credential: &syscall.Credential{Uid: a.uid, Gid: a.gid, Groups: a.groups},
	}
}

// largestFile bounds what a guest can make QEMU write to this host's disk: its
// console. Beyond it the guest's words are lost.
const largestFile = 256 << 10

// refuseSilently lets a write beyond largestFile fail rather than end QEMU:
// what a process ignores, its children ignore.
var refuseSilently = sync.OnceFunc(func() { signal.Ignore(unix.SIGXFSZ) })

// spawn starts a program in dir that outlives this one. Its output goes to
// log, files become its descriptors 3 and up. No file it writes can grow
// beyond largestFile.
func spawn(a account, dir string, command []string, log *os.File, files ...*os.File) (process, error) {
	cmd := exec.Command("prlimit", append([]string{fmt.Sprintf("--fsize=%d", largestFile), "--"}, command...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = dir, log, log, files
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.SysProcAttr = a.attributes()
	refuseSilently()
	if err := cmd.Start(); err != nil {
		return process{}, fmt.Errorf("start %s: %w", command[0], err)
	}
	p := process{PID: cmd.Process.Pid}
	st, err := readStat(p.PID)
	if err != nil {
		return process{}, errors.Join(fmt.Errorf("start %s: %w", command[0], err), cmd.Process.Kill(), cmd.Wait())
	}
	p.Ticks = st.ticks
	// Waiting is the business of whoever watches, this agent or the next.
	return p, cmd.Process.Release()
}

// stat is what /proc says of a process.
type stat struct {
	state byte
	cpu   time.Duration // used so far, all threads
	ticks uint64
}

// userHz is the unit of times in /proc: 100 on every Linux platform Go knows.
const userHz = 100

func readStat(pid int) (stat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	// The name, second, is in parentheses and may hold anything.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 || len(fields[0]) != 1 {
		return stat{}, fmt.Errorf("/proc/%d/stat is not as expected", pid)
	}
	user, err1 := strconv.ParseUint(fields[11], 10, 64)
	system, err2 := strconv.ParseUint(fields[12], 10, 64)
	ticks, err3 := strconv.ParseUint(fields[19], 10, 64)
	return stat{fields[0][0], time.Duration(user+system) * time.Second / userHz, ticks}, errors.Join(err1, err2, err3)
}

// isGone reports whether readStat found no such process. Its other errors are
// this process's own trouble.
func isGone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// residentBytes is the host memory the process occupies; 0 if that cannot be
// read.
func (p process) residentBytes() int64 {
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

// watch opens a handle on the process. It is an os.ErrNotExist if that very
// process is gone.
func (p process) watch() (*os.File, error) {
	gone := fmt.Errorf("process %d: %w", p.PID, os.ErrNotExist)
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, gone
	}
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", p.PID, err)
	}
	// The handle is on whoever has the number now: is it still the same?
	st, err := readStat(p.PID)
	if err != nil && !isGone(err) {
		unix.Close(fd)
		return nil, fmt.Errorf("watch process %d: %w", p.PID, err)
	}
	if err != nil || st.ticks != p.Ticks || st.state == 'Z' || st.state == 'X' {
		reap(fd)
		unix.Close(fd)
		return nil, gone
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("process %d", p.PID)), nil
}

// await returns when the process has ended (nil) or the handle was closed.
func await(handle *os.File) error {
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

// kill ends the process behind the handle. One that is gone is no error.
func kill(handle *os.File) error {
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

// processesIn gives the account's processes whose working directory is dir: a
// QEMU that was started by an agent which died before it could note its
// number.
func processesIn(a account, dir string) []process {
	var out []process
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
		if unix.Stat("/proc/"+e.Name(), &st) != nil || st.Uid != a.uid {
			continue
		}
		if at, err := os.Readlink("/proc/" + e.Name() + "/cwd"); err != nil || at != dir {
			continue
		}
		if s, err := readStat(pid); err == nil {
			out = append(out, process{pid, s.ticks})
		}
	}
	return out
}

// openTap gives the descriptor of a tap that the overlay has made.
func openTap(name string) (*os.File, error) {
	// Asking the tun device for a name nobody made would make one.
	if _, err := net.InterfaceByName(name); err != nil {
		return nil, fmt.Errorf("plug into %s: %w", name, err)
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return nil, fmt.Errorf("plug into %s: %w", name, err)
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("plug into %s: open /dev/net/tun: %w", name, err)
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("plug into %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// escapes are what a kernel and its console say to a terminal, not to people.
var escapes = regexp.MustCompile("\x1b\\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")

// tail is the last lines of a log, for people. QEMU's account may have put
// anything in the place of a log, so nothing but a plain file is read.
func tail(path string, lines int) string {
	const most = 4096
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	} else if info.Size() > most {
		f.Seek(-most, io.SeekEnd)
	}
	text, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return ""
	}
	var all []string
	for _, line := range strings.FieldsFunc(strings.ToValidUTF8(string(text), ""), func(r rune) bool { return r == '\n' || r == '\r' }) {
		if line = strings.TrimSpace(escapes.ReplaceAllString(line, "")); line != "" {
			all = append(all, line)
		}
	}
	return strings.Join(all[max(0, len(all)-lines):], "; ")
}

// short gives a path to a file in dir that fits a UNIX address, however long
// dir is; it is valid until the folder is closed.
func short(dir, file string) (path string, folder *os.File, err error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("open %s: %w", dir, err)
	}
	return filepath.Join("/proc/self/fd", strconv.Itoa(fd), file), os.NewFile(uintptr(fd), dir), nil
}
