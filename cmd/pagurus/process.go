package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// termPatience is how long a daemon may take to end in good order.
	termPatience = 10 * time.Second
	// killPatience is how long the kernel may take to end a killed process:
	// one that hangs in the kernel is not waited for for ever.
	killPatience = 5 * time.Second
	// logTail is how much of a log an error shows.
	logTail = 600
)

// process names a process for good: by its number and when it began, since
// numbers are used again.
type process struct {
	PID   int
	Ticks uint64 // clock ticks since boot
}

// thisProcess gives the process that has the number now.
func processOf(pid int) (process, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, err
	}
	// The name, second, stands in parentheses and may hold anything.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 {
		return process{}, fmt.Errorf("/proc/%d/stat is not as expected", pid)
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return process{}, fs.ErrNotExist
	}
	ticks, err := strconv.ParseUint(fields[19], 10, 64)
	return process{pid, ticks}, err
}

// alive reports whether that very process still runs.
func (p process) alive() bool {
	now, err := processOf(p.PID)
	return p.PID > 0 && err == nil && now == p
}

// end ends the process, and returns when it is gone: in good order within
// patience, otherwise killed. A process that is gone already is no error.
func (p process) end(patience time.Duration) error {
	if p.PID <= 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ending process %d: %w", p.PID, err)
	}
	defer func() { _ = unix.Close(fd) }()
	// The handle is on whoever has the number now; from here on it cannot
	// become somebody else.
	if !p.alive() {
		return nil
	}
	for _, step := range []struct {
		signal unix.Signal
		wait   time.Duration
	}{{unix.SIGTERM, patience}, {unix.SIGKILL, killPatience}} {
		if step.wait == 0 {
			continue
		}
		if err := unix.PidfdSendSignal(fd, step.signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("ending process %d: %w", p.PID, err)
		}
		if gone(fd, step.wait) {
			return nil
		}
	}
	return fmt.Errorf("process %d does not end, not even killed: it hangs in the kernel", p.PID)
}

// gone waits for the process behind a pidfd to end.
func gone(fd int, limit time.Duration) bool {
	deadline := time.Now().Add(limit)
	for {
		left := time.Until(deadline)
		if left < 0 {
			return false
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left/time.Millisecond)+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false
		}
		if n > 0 {
			return true
		}
	}
}

// daemon is a process of the lab that outlives the command that started it.
type daemon struct {
	name      string   // for people
	args      []string // of this binary
	namespace string   // network namespace it lives in; empty: the machine's own
	pidFile   string
	logFile   string
}

// running gives the daemon's process, if it runs.
func (d daemon) running() (process, bool) {
	text, err := os.ReadFile(d.pidFile)
	if err != nil {
		return process{}, false
	}
	var p process
	if _, err := fmt.Sscan(string(text), &p.PID, &p.Ticks); err != nil {
		return process{}, false
	}
	return p, p.alive()
}

// start starts the daemon unless it runs already. After an error it does not
// run.
func (d daemon) start() error {
	if _, ok := d.running(); ok {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	for _, file := range []string{d.pidFile, d.logFile} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(d.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("opening the log of %s: %w", d.name, err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(self, d.args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := inNamespace(d.namespace, cmd.Start); err != nil {
		return fmt.Errorf("starting %s: %w", d.name, err)
	}
	p, err := processOf(cmd.Process.Pid)
	if err == nil {
		err = os.WriteFile(d.pidFile, fmt.Appendf(nil, "%d %d\n", p.PID, p.Ticks), 0o644)
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return fmt.Errorf("starting %s: %w", d.name, errors.Join(err, d.died()))
	}
	go func() { _ = cmd.Wait() }() // while this command lives, so that a daemon that dies is seen to be gone
	return nil
}

// died is the error that the daemon is gone, with the end of its log.
func (d daemon) died() error {
	tail := ""
	if text, err := os.ReadFile(d.logFile); err == nil {
		tail = strings.TrimSpace(string(text[max(0, len(text)-logTail):]))
	}
	return fmt.Errorf("%s ended; the end of its log %s:\n%s", d.name, d.logFile, tail)
}

// stop ends the daemon and forgets it.
func (d daemon) stop(patience time.Duration) error {
	if p, ok := d.running(); ok {
		if err := p.end(patience); err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
	}
	if err := os.Remove(d.pidFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// once runs this binary to its end, as the daemon would be run. Its output is
// for people and goes to out.
func (d daemon) once(ctx context.Context, out io.Writer, args ...string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", out, out
	if err := inNamespace(d.namespace, cmd.Start); err != nil {
		return err
	}
	return cmd.Wait()
}

// hold takes a lock file for as long as this process lives, and writes into it
// what it is held for. The error says what holds it already.
func hold(path, purpose string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return nil, fmt.Errorf("opening the lock file: %w", err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			holder, _ := io.ReadAll(io.LimitReader(f, 200))
			_ = f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, held{path: path, by: strings.TrimSpace(string(holder))}
			}
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		// Whoever held it before may have removed it between our two steps.
		mine, err1 := f.Stat()
		there, err2 := os.Stat(path)
		if err1 != nil || err2 != nil || !os.SameFile(mine, there) {
			_ = f.Close()
			continue
		}
		if err := errors.Join(f.Truncate(0), writeAt(f, purpose)); err != nil {
			return nil, fmt.Errorf("writing %s: %w", path, errors.Join(err, release(f)))
		}
		return f, nil
	}
}

// release gives a lock file back, and removes it.
func release(f *os.File) error { return errors.Join(os.Remove(f.Name()), f.Close()) }

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text+"\n"), 0)
	return err
}

// held is the error that something else holds a lock.
type held struct{ path, by string }

// Error says who holds it.
func (h held) Error() string {
	return fmt.Sprintf("%s is already running here (it holds %s)", h.by, h.path)
}
