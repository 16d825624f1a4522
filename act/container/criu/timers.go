package criu

import (
	"fmt"
	"os"
	"strings"
)

// timers examines the process's timers. CRIU 4.2 can restore a timer that signals one
// thread (SIGEV_THREAD_ID) for every thread but a process's first.
func (s subject) timers() []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/timers", s.pid))
	if !strings.Contains(string(text), fmt.Sprintf("/tid.%d\n", s.pid)) {
		return nil
	}
	return []string{s.name + " has a timer that signals its first thread alone (SIGEV_THREAD_ID), which cannot move: let it signal the process (SIGEV_SIGNAL), or another thread"}
}
