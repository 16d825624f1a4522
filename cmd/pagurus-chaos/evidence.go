package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// evidence keeps what else may explain a hang and vanishes with the lab: the hosts'
// connections, and where in the kernel each thread of a guest waits.
func (c *chaos) evidence(folder string) error {
	var errs []error
	for i := range c.hosts {
		host := fmt.Sprintf("host%d", i+1)
		// A host without connections, or a gone one, is not an error.
		sockets, _ := exec.Command("ip", "netns", "exec", namespaceOf+host, "ss", "-tnpoim").CombinedOutput()
		errs = append(errs, os.WriteFile(filepath.Join(folder, "sockets-"+host+".txt"), sockets, 0o644))
	}
	all, err := c.copies()
	errs = append(errs, err)
	var threads strings.Builder
	for _, p := range all {
		fmt.Fprintf(&threads, "\n== process %d of guest %s on %s\n", p.PID, p.guest, p.host)
		waiting(&threads, p.PID)
	}
	return errors.Join(append(errs, os.WriteFile(filepath.Join(folder, "threads.txt"), []byte(threads.String()), 0o644))...)
}

// waiting lists a process's threads by name, with their kernel stacks.
func waiting(to *strings.Builder, pid int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid)) // a constant pattern is well-formed
	for _, task := range tasks {
		for _, name := range []string{"comm", "syscall", "stack"} {
			text, _ := os.ReadFile(filepath.Join(task, name)) // it may end, or the kernel may not tell
			fmt.Fprintf(to, "%s %s", filepath.Base(task), text)
		}
	}
}
