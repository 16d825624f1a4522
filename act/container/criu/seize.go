package criu

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
)

const (
	// seizeSeconds is how long CRIU itself waits for processes that do not stop. A
	// process that waits for its vfork child stops only after the child continues.
	seizeSeconds = 2
	// seizeLimit is how long CRIU may take to hold all processes; then it is killed. A
	// CRIU that hangs in the kernel does not notice its own limit.
	seizeLimit = 2 * seizeSeconds * time.Second
	seizeAgain = time.Millisecond
)

// seizing makes CRIU hold all processes in time, or end: the processes are suspended
// meanwhile. held is closed when CRIU holds them, over when it has ended.
func (d *Dumping) seizing(held, over <-chan struct{}) {
	limit := time.NewTimer(seizeLimit)
	defer limit.Stop()
	look := time.NewTicker(seizeAgain)
	defer look.Stop()
	group := host.Freezer(d.spec.Freezer)
	for {
		select {
		case <-held:
			return
		case <-over:
			return
		case <-limit.C:
			d.call.kill(d.call.cmd.Process)
			return
		case <-look.C:
			if tid := seized(d.call.pid); tid != 0 {
				wake(group, tid, func() bool { return seized(d.call.pid) != tid })
			}
		}
	}
}

// ptraceSeize is PTRACE_SEIZE as /proc/PID/syscall shows it.
const ptraceSeize = "0x4206"

// seized returns the thread that CRIU is waiting for in PTRACE_SEIZE, or 0.
func seized(criu int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", criu))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(text))
	if len(f) < 3 || f[0] != strconv.Itoa(unix.SYS_PTRACE) || f[1] != ptraceSeize {
		return 0
	}
	tid, err := strconv.ParseInt(f[2], 0, 32)
	if err != nil {
		return 0
	}
	return int(tid)
}

// wakeLimit is the longest time for which a thread is out of its group. If it has a
// processor it is seized within some microseconds.
const wakeLimit = 100 * time.Millisecond

// wake takes a thread that was stopped by a signal out of a frozen group until it is
// seized. Seizing a stopped thread waits for its answer, which it cannot give in a frozen
// group of version 1. The thread does not execute its program meanwhile: it is stopped,
// and then held. Version 2 does not have this problem.
func wake(f host.Freezer, tid int, done func() bool) {
	if !f.Legacy() {
		return
	}
	put := func(folder string) error {
		return os.WriteFile(filepath.Join(folder, "tasks"), []byte(strconv.Itoa(tid)), 0)
	}
	if put(filepath.Dir(string(f))) != nil {
		return // the thread has ended; otherwise seizeLimit applies
	}
	for end := time.Now().Add(wakeLimit); !done() && time.Now().Before(end); {
		time.Sleep(seizeAgain / 20)
	}
	_ = put(string(f)) // fails only if the thread has ended
}

// returnThreads puts threads back that wake took out of their group before its process
// died.
func returnThreads(f host.Freezer, pid int) error {
	if !f.Legacy() {
		return nil
	}
	all, err := Processes(pid)
	if err != nil {
		return err
	}
	for _, p := range all {
		err := os.WriteFile(filepath.Join(string(f), "cgroup.procs"), []byte(strconv.Itoa(p)), 0)
		if err != nil && !isGone(err) {
			return fmt.Errorf("put process %d back into its control group: %w", p, err)
		}
	}
	return nil
}
