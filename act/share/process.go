package share

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
)

// process refers to one process, even if its PID is reused.
type process struct {
	pid   int
	child *exec.Cmd // to be waited for; nil: not our child
	file  *os.File  // the pidfd
	once  sync.Once
	done  chan struct{}
}

func openProcess(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("opening process %d: %w", pid, err)
	}
	return &process{pid: pid, file: os.NewFile(uintptr(fd), "pidfd"), done: make(chan struct{})}, nil
}

// holdProcess refers to a process that is known.
func holdProcess(known host.Process) (*process, error) {
	handle, err := known.Watch()
	if err != nil {
		return nil, err
	}
	return &process{pid: known.PID, file: handle, done: make(chan struct{})}, nil
}

// ended returns a channel that is closed when the process has ended or was released.
func (p *process) ended() <-chan struct{} {
	p.once.Do(func() {
		go func() {
			defer close(p.done)
			raw, err := p.file.SyscallConn()
			if err != nil {
				return
			}
			// The runtime's poller waits, not a thread for each server.
			err = raw.Read(func(fd uintptr) bool { return hasEnded(int(fd)) })
			switch {
			case err == nil && p.child != nil:
				p.child.Wait()
			case p.child != nil: // released, but still a child
				go p.child.Wait()
			case err == nil: // a child from before this package was reopened, or another's
				_ = raw.Control(func(fd uintptr) { _ = unix.Waitid(unix.P_PIDFD, int(fd), nil, unix.WEXITED|unix.WNOHANG, nil) })
			}
		}()
	})
	return p.done
}

func hasEnded(fd int) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, 0)
	return n > 0 && err == nil
}

func (p *process) lives() bool {
	select {
	case <-p.ended():
		return false
	default:
		return true
	}
}

// killLimit is the time for a killed process to end, which a disk or a network file
// system may delay.
const killLimit = 20 * time.Second

// kill ends the process and returns when it has ended.
func (p *process) kill() error {
	raw, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) }); err != nil {
		return err
	}
	if sent != nil && !errors.Is(sent, unix.ESRCH) {
		return fmt.Errorf("killing process %d: %w", p.pid, sent)
	}
	select {
	case <-p.ended():
		p.close()
		return nil
	case <-time.After(killLimit):
		return fmt.Errorf("process %d does not end %v after it was killed: is a disk or network file system stuck?", p.pid, killLimit)
	}
}

func (p *process) close() { p.file.Close() }

// stepsLimit is the time for a started process to become the server.
const stepsLimit = 5 * time.Second

// findServers returns the running servers of earlier versions with a configuration, by PID; they are in no jail. Any user can
// start a process with a server's command line, so a server must also run as root with
// the server's program.
func findServers(program, config string) ([]*process, error) {
	wanted := []byte("\x00-F\x00-f\x00" + config + "\x00")
	var found []*process
	for _, pid := range processNumbers() {
		if !hasArguments(pid, wanted) {
			continue
		}
		p, err := openProcess(pid)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			for _, p := range found {
				p.close()
			}
			return nil, err
		}
		// A process started just before its agent ended may still be a step on the way to
		// the server.
		for end := time.Now().Add(stepsLimit); p.isRoots("sh", "setpriv") && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		// Read while it is held and alive, so that all of it is about one process and not
		// a later one with its PID.
		if !hasArguments(pid, wanted) || !p.isRoots(program) || !p.lives() {
			p.close()
			continue
		}
		found = append(found, p)
	}
	return found, nil
}

// processNumbers lists all PIDs in numeric order.
func processNumbers() []int {
	entries, _ := os.ReadDir("/proc")
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

func hasArguments(pid int, wanted []byte) bool {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return bytes.Contains(line, wanted)
}

// isRoots reports whether the process is root's and runs one of the programs.
func (p *process) isRoots(programs ...string) bool {
	var owner unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d", p.pid), &owner) != nil || owner.Uid != 0 {
		return false
	}
	file, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.pid))
	if err != nil {
		return false
	}
	// An upgrade of the package deletes the running server's file.
	file, deleted := strings.CutSuffix(file, " (deleted)")
	return slices.ContainsFunc(programs, func(program string) bool {
		path, err := exec.LookPath(program)
		if err == nil {
			path, err = filepath.EvalSymlinks(path)
		}
		if err != nil { // the package was removed
			return deleted && filepath.Base(file) == filepath.Base(program)
		}
		return file == path
	})
}
