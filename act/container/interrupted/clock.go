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

// clock is the time of a processor's clock, which the kernel records when a thread runs. It lags
// behind real time by the time of interrupts, so a thread has waited at least so long.
type clock struct {
	now       float64 // milliseconds
	begun, at time.Time
}

// clocks reads the clocks of the processors on which the threads last ran.
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
		runtime.LockOSThread() // never unlocked: the thread ends, because it is bound to a processor
		for cpu := range all {
			var only unix.CPUSet
			only.Set(cpu)
			if unix.SchedSetaffinity(0, &only) != nil {
				delete(all, cpu)
				continue
			}
			begun := time.Now()
			nap := unix.NsecToTimespec(1000)
			_ = unix.Nanosleep(&nap, nil) // when it wakes, the kernel reads the clock
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

// processor returns the processor on which a thread last ran, or -1 if unknown.
func processor(t *thread) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/stat", t.pid, t.tid))
	_, rest, _ := strings.Cut(string(text[max(0, strings.LastIndex(string(text), ")")):]), " ")
	f := strings.Fields(rest)
	const field = 39 - 3 // the third field comes first here
	if len(f) <= field {
		return -1
	}
	cpu, err := strconv.Atoi(f[field])
	if err != nil {
		return -1
	}
	return cpu
}
