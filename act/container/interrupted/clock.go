package interrupted

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// clock is what a processor's clock says, which the kernel notes when a thread runs: it is
// behind real time by what interrupts took, so a thread has waited at least as long as it says.
type clock struct {
	now       float64 // milliseconds
	begun, at time.Time
}

// clocks reads the clocks of the processors that threads last ran on.
func clocks(threads map[int]*thread) map[int]clock {
	all := map[int]clock{}
	for _, t := range threads {
		if t.ran != "" {
			all[processor(t)] = clock{}
		}
	}
	delete(all, -1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: it ends, with the processor it was bound to
		for cpu := range all {
			var only unix.CPUSet
			only.Set(cpu)
			if unix.SchedSetaffinity(0, &only) != nil {
				delete(all, cpu)
				continue
			}
			begun := time.Now()
			nap := unix.NsecToTimespec(1000)
			_ = unix.Nanosleep(&nap, nil) // when it wakes, its clock is read
			now, err := strconv.ParseFloat(ran(fmt.Sprintf("/proc/self/task/%d/", unix.Gettid())), 64)
			if err != nil {
				delete(all, cpu)
				continue
			}
			all[cpu] = clock{now, begun, time.Now()}
		}
	}()
	<-done
	return all
}

// processor is the one that a thread last ran on; -1: it is not known.
func processor(t *thread) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/stat", t.pid, t.tid))
	_, rest, _ := strings.Cut(string(text[max(0, strings.LastIndex(string(text), ")")):]), " ")
	f := strings.Fields(rest)
	const field = 39 - 3 // the third comes first here
	if len(f) <= field {
		return -1
	}
	cpu, err := strconv.Atoi(f[field])
	if err != nil {
		return -1
	}
	return cpu
}
