package main

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// endGrace is programs' time between SIGTERM and SIGKILL, and then the kernel's time to
// close their files.
const endGrace = 2 * time.Second

// endAll ends every other process: programs, their children, and processes that peers
// started here. One that hangs in the kernel may be left.
func (m *member) endAll(ctx context.Context) {
	if !firstOfAll() {
		for _, p := range m.programs {
			p.end(m.children, unix.SIGKILL)
		}
		return
	}
	unix.Kill(-1, unix.SIGTERM)
	unix.Kill(-1, unix.SIGCONT)
	if !alone(ctx) {
		unix.Kill(-1, unix.SIGKILL)
		alone(ctx)
	}
}

// alone waits at most endGrace until only this process and the kernel's are left, and
// reports whether that is so.
func alone(ctx context.Context) bool {
	for deadline := time.Now().Add(endGrace); len(others()) > 0; time.Sleep(20 * time.Millisecond) {
		if ctx.Err() != nil || time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// others gives the other user processes. Signal 0 to all does not work: it also reaches the
// kernel's threads.
func others() (pids []int) {
	names, _ := filepath.Glob("/proc/[1-9]*/stat")
	for _, name := range names {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		stat, _ := os.ReadFile(name) // empty if it has gone meanwhile
		if err == nil && pid != os.Getpid() && isUser(string(stat)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// isUser reads from /proc/PID/stat whether a process is a program that may still hold files.
// Command line and executable do not tell: an ending process has lost both while the kernel
// still flushes its files.
func isUser(stat string) bool {
	const kernelThread = 0x00200000 // PF_KTHREAD
	// The name, the second field, is in parentheses and may contain anything.
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(f) < 18 {
		return false
	}
	state, threads := f[0], f[17]
	flags, err := strconv.ParseUint(f[6], 10, 64)
	zombie := (state == "Z" || state == "X") && (threads == "0" || threads == "1") // otherwise threads of it still run
	return err == nil && flags&kernelThread == 0 && !zombie
}
