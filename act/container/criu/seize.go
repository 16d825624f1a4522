package criu

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// seizeSeconds is how long CRIU itself waits for processes that do not stop. One
	// that waits for its vfork child does not before the child goes on.
	seizeSeconds = 2
	// seizeLimit is how long it may take to hold all processes before it is killed:
	// where it hangs in the kernel it does not notice its own limit.
	seizeLimit = 2 * seizeSeconds * time.Second
	seizeAgain = time.Millisecond
)

// seizing sees to it that CRIU comes to hold all processes, or ends: they are suspended
// for as long. held is closed when it does, over when it has ended.
func (d *Dumping) seizing(held, over <-chan struct{}) {
	limit := time.NewTimer(seizeLimit)
	defer limit.Stop()
	look := time.NewTicker(seizeAgain)
	defer look.Stop()
	group := freezer(d.spec.Freezer)
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
				group.wake(tid, func() bool { return seized(d.call.pid) != tid })
			}
		}
	}
}

// ptraceSeize is PTRACE_SEIZE, as /proc/PID/syscall has it.
const ptraceSeize = "0x4206"

// seized is the thread that a CRIU waits for in a call to seize it; 0: in none.
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

// wakeLimit is how long a thread takes at most to be seized once it is out of its group:
// some microseconds, if it has a processor.
const wakeLimit = 100 * time.Millisecond

// wake takes a thread that was stopped by a signal out of a frozen group until it is
// seized. To seize a stopped thread means to wait for an answer from it, which it cannot
// give while the freezer of version 1 holds it. It runs none of its program meanwhile: it
// is stopped, and then held. A group of version 2 holds no thread so.
func (f freezer) wake(tid int, done func() bool) {
	if f == "" {
		return
	}
	if _, err := os.Stat(filepath.Join(string(f), freezers[0].file)); err != nil {
		return
	}
	put := func(folder string) error {
		return os.WriteFile(filepath.Join(folder, "tasks"), []byte(strconv.Itoa(tid)), 0)
	}
	if put(filepath.Dir(string(f))) != nil {
		return // it has ended; otherwise seizeLimit ends this
	}
	for end := time.Now().Add(wakeLimit); !done() && time.Now().Before(end); {
		time.Sleep(seizeAgain / 20)
	}
	_ = put(string(f)) // it fails only if it has ended: it was there before
}

// returnThreads puts threads back that wake has taken out of their group, if who called it died.
func (f freezer) returnThreads(pid int) error {
	if f == "" {
		return nil
	}
	if _, err := os.Stat(filepath.Join(string(f), freezers[0].file)); err != nil {
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
