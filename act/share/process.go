package share

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// process is a hold on a process that stays on that very process, whoever gets
// its number later.
type process struct {
	pid   int
	child *exec.Cmd // to be waited for; nil: it is not ours
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

// ended gives a channel that is closed when the process has ended, or is no
// longer held.
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
			case err == nil: // a child from before this package was closed and opened again, or nobody of ours
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

// killLimit is how long a killed process may take to end. One that waits for a
// disk or a network file system takes as long as that.
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

// findProcess gives the process that was started with these arguments in a
// row, or 0.
func findProcess(arguments ...string) int {
	wanted := []byte("\x00" + strings.Join(arguments, "\x00") + "\x00")
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline"); bytes.Contains(line, wanted) {
			return pid
		}
	}
	return 0
}
