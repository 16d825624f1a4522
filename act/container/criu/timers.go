package criu

import (
	"fmt"
	"os"
	"strings"
)

// timers looks at its timers. CRIU 4.2 finds the number of a thread that a timer tells
// for every thread but the first of a process.
func (s subject) timers() []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/timers", s.pid))
	if !strings.Contains(string(text), fmt.Sprintf("/tid.%d\n", s.pid)) {
		return nil
	}
	return []string{s.name + " has a timer that signals its first thread alone (SIGEV_THREAD_ID), which cannot move: let it signal the process (SIGEV_SIGNAL), or another thread"}
}
