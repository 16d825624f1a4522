package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// killPatience is the time for a killed process to end: one that hangs in the kernel is
// given up.
const killPatience = 5 * time.Second

// Process identifies a process permanently by PID and start time, because PIDs are
// reused.
type Process struct {
	PID   int
	Ticks uint64 // clock ticks since boot
}

// Find returns the process that has the PID now. A zombie does not count.
func Find(pid int) (Process, error) {
	for range replacing {
		p, state, threads, err := stat(pid)
		switch {
		case err != nil:
			return Process{}, err
		case state != "Z" && state != "X", threads > 1:
			return p, nil // if only the first thread has ended, the others run on
		case threads == 1:
			return Process{}, fs.ErrNotExist
		}
	}
	return Process{}, fs.ErrNotExist
}

// replacing is how often a dead process without threads is checked again. It may have
// ended, or another of its threads may be calling exec and about to take over the PID
// (execve(2), de_thread in fs/exec.c).
const replacing = 100

// stat reads a process's identity, the state of its first thread, and its number of
// threads.
func stat(pid int) (p Process, state string, threads int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Process{}, "", 0, err
	}
	// The second field, the name, is in parentheses and may contain anything.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 {
		return Process{}, "", 0, fmt.Errorf("/proc/%d/stat is not as expected", pid)
	}
	if threads, err = strconv.Atoi(fields[17]); err != nil {
		return Process{}, "", 0, err
	}
	ticks, err := strconv.ParseUint(fields[19], 10, 64)
	return Process{pid, ticks}, fields[0], threads, err
}

// Processes lists the other processes for which is returns true.
func Processes(is func(pid int) bool) ([]Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		p, err := Find(pid)
		// It may have ended during is, and its PID been reused.
		if err == nil && is(pid) && p.Alive() {
			found = append(found, p)
		}
	}
	return found, nil
}

// Alive reports whether this process still runs.
func (p Process) Alive() bool {
	now, err := Find(p.PID)
	return p.PID > 0 && err == nil && now == p
}

// End ends the process and waits: it terminates it, and kills it after patience. A
// process that has already ended is not an error.
func (p Process) End(patience time.Duration) error {
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
	// The handle may be for a process with a reused PID; from here on it cannot change.
	if !p.Alive() {
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

// gone waits for the process of a pidfd to end.
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
