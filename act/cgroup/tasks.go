package cgroup

import (
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"pagurus/fleet"
)

// A program that forks without end must not use up the host's PIDs. Usual programs on so
// many CPUs are far below this: the default for a whole machine is 32768.
const (
	leastTasks  = 4096
	tasksPerCPU = 512
)

// tasksOf is the maximum number of a guest's processes and threads.
func tasksOf(cpus int) int { return max(leastTasks, tasksPerCPU*cpus) }

// TasksRefused returns how often a contained guest could not start a process or thread because
// it had as many as it may have, and how many that is. It is 0 if that is unknown.
func (g *Groups) TasksRefused(guest fleet.GuestID) (times, most int) {
	at, err := g.of(guest)
	if err != nil {
		return 0, 0
	}
	dir, _ := g.tasks(at)
	if dir == "" {
		return 0, 0
	}
	events, err1 := os.ReadFile(filepath.Join(dir, "pids.events"))
	limit, err2 := os.ReadFile(filepath.Join(dir, "pids.max"))
	if err1 != nil || err2 != nil {
		return 0, 0
	}
	most, _ = strconv.Atoi(strings.TrimSpace(string(limit))) // 0 for "max"
	return countOf("max ", string(events)), most
}

// holdTasks limits a contained group's processes and threads, and moves processes there
// if that is a separate tree. If the kernel lacks the controller there is no limit.
func (g *Groups) holdTasks(at string, most int, pids []int) error {
	dir, own := g.tasks(at)
	if dir == "" {
		return nil
	}
	if own {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	} else if enableController(path.Dir(at), "+pids") != nil {
		return nil
	}
	err := write(dir, "pids.max", strconv.Itoa(most))
	for _, pid := range pids {
		if err == nil && own {
			err = write(dir, procs, strconv.Itoa(pid))
		}
	}
	return err
}

// tasks is the folder for this limit, and whether it is in a separate tree; empty: there
// is none.
func (g *Groups) tasks(at string) (dir string, own bool) {
	if _, old := g.tree.(legacy); !old {
		return filepath.Join(mountPoint, at), false
	}
	root, err := hierarchy("pids")
	if err != nil {
		return "", true
	}
	return filepath.Join(root, at), true
}
