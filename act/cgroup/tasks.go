package cgroup

import (
	"os"
	"path"
	"path/filepath"
	"strconv"
)

// A program that forks without end must not use up the host's PIDs. Usual programs on so
// many CPUs are far below this: the default for a whole machine is 32768.
const (
	leastTasks  = 4096
	tasksPerCPU = 512
)

// tasksOf is the maximum number of a guest's processes and threads.
func tasksOf(cpus int) int { return max(leastTasks, tasksPerCPU*cpus) }

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
