// Package fault makes a named fault point fail on purpose, so that tests can try every place
// at which a process may die. It is in every build and does nothing unless the environment
// says so:
//
//	PAGURUS_FAULT=qemu.switch.after-continue=kill,qemu.resume.before=error,qemu.stop.before=sleep:2s,agent.copy.before=until:/tmp/go,controller.clock=ahead:/tmp/clocks
//
// It knows no fault point by name. Its tests run against a process of their own.
package fault

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Environment is the name of the variable.
const Environment = "PAGURUS_FAULT"

// untilLimit is the longest wait for a file.
const untilLimit = time.Minute

// killed is a shell's exit status for a process that SIGKILL ended.
const killed = 137

var wanted = sync.OnceValue(func() map[string]string { return parse(os.Getenv(Environment)) })

// Point is a fault point. It returns nil, or an error for "error", or nil after a while
// ("sleep:DURATION") or when a file exists ("until:PATH"). For "kill" it does not return.
func Point(name string) error {
	what, ok := wanted()[name]
	if !ok {
		return nil
	}
	switch kind, value, _ := strings.Cut(what, ":"); kind {
	case "kill":
		fmt.Fprintf(os.Stderr, "fault: killed at %s\n", name)
		os.Exit(killed)
	case "sleep":
		if d, err := time.ParseDuration(value); err == nil {
			time.Sleep(d)
		}
		return nil
	case "until":
		for end := time.Now().Add(untilLimit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if _, err := os.Lstat(value); err == nil {
				break
			}
		}
		return nil
	case "error":
		return fmt.Errorf("fault wanted at %s", name)
	}
	return nil
}

// Ahead is by how much a process's own wall clock is ahead of the machine's, which no namespace has of its own: 0, or what
// the file FOLDER/PID says for "ahead:FOLDER". So a test sets one process's clock by hours and back.
func Ahead(name string) time.Duration {
	folder, ok := strings.CutPrefix(wanted()[name], "ahead:")
	if !ok {
		return 0
	}
	text, err := os.ReadFile(filepath.Join(folder, strconv.Itoa(os.Getpid())))
	if err != nil {
		return 0
	}
	d, err := time.ParseDuration(strings.TrimSpace(string(text)))
	if err != nil {
		return 0 // it is being written
	}
	return d
}

func parse(list string) map[string]string {
	out := map[string]string{}
	for _, entry := range strings.Split(list, ",") {
		if name, what, ok := strings.Cut(strings.TrimSpace(entry), "="); ok {
			out[name] = what
		}
	}
	return out
}
