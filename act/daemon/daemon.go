// Package daemon manages this machine's long-running processes. It starts them so that
// they outlive their starter, finds them, ends them, keeps them apart by locks, and puts
// each in its network namespace.
//
// It does not know what they do. Its tests use the kernel.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// logTail is how much of a log an error shows.
	logTail = 600
	// firstOther is the first file descriptor after the standard streams.
	firstOther = 3
)

// Daemon is a process that outlives the command that starts it.
type Daemon struct {
	Name      string   // with its arguments
	Command   []string // the program and its arguments
	Namespace Namespace
	PIDFile   string
	LogFile   string

	Ended func(*os.ProcessState) // told how it ended, while the process that started it lives; nil: nobody is
}

// Running returns the daemon's process, if it runs.
func (d Daemon) Running() (Process, bool) {
	text, err := os.ReadFile(d.PIDFile)
	if err != nil {
		return Process{}, false
	}
	var p Process
	if _, err := fmt.Sscan(string(text), &p.PID, &p.Ticks); err != nil {
		return Process{}, false
	}
	return p, p.Alive()
}

// Start starts the daemon unless it runs already. After an error it does not run.
func (d Daemon) Start() error {
	if _, ok := d.Running(); ok {
		return nil
	}
	for _, file := range []string{d.PIDFile, d.LogFile} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(d.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("opening the log of %s: %w", d.Name, err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(d.Command[0], d.Command[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// A daemon must not keep the caller's open files, such as a lock. Linux before 5.11
	// cannot set this; then it keeps them.
	_ = unix.CloseRange(firstOther, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err := d.Namespace.Do(cmd.Start); err != nil {
		return fmt.Errorf("starting %s: %w", d.Name, err)
	}
	ended := func() {
		_ = cmd.Wait()
		if d.Ended != nil {
			d.Ended(cmd.ProcessState)
		}
	}
	p, err := Find(cmd.Process.Pid)
	if errors.Is(err, fs.ErrNotExist) {
		ended()
		return d.Died()
	}
	if err == nil {
		err = os.WriteFile(d.PIDFile, fmt.Appendf(nil, "%d %d\n", p.PID, p.Ticks), 0o644)
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return fmt.Errorf("starting %s: %w", d.Name, err)
	}
	go ended() // reaps the daemon while this process lives
	return nil
}

// Died is the error that the daemon has ended, with the end of its log.
func (d Daemon) Died() error {
	tail := ""
	if text, err := os.ReadFile(d.LogFile); err == nil {
		tail = strings.TrimSpace(string(text[max(0, len(text)-logTail):]))
	}
	return fmt.Errorf("%s ended; the end of its log %s:\n%s", d.Name, d.LogFile, tail)
}

// Stop ends the daemon, by a kill after patience, and removes its record. A daemon that
// does not run is not an error.
func (d Daemon) Stop(patience time.Duration) error {
	if p, ok := d.Running(); ok {
		if err := p.End(patience); err != nil {
			return fmt.Errorf("%s: %w", d.Name, err)
		}
	}
	if err := os.Remove(d.PIDFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Once runs a command to its end in the daemon's network namespace. Its output goes to
// out.
func (d Daemon) Once(ctx context.Context, out io.Writer, command ...string) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", out, out
	if err := d.Namespace.Do(cmd.Start); err != nil {
		return err
	}
	return cmd.Wait()
}
