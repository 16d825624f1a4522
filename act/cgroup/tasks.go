package cgroup

import (
	"os"
	"path"
	"path/filepath"
	"strconv"
)

// A program that forks without end must not take the host's numbers of processes from
// everybody else. What programs for so many CPUs start is far below this: kernels that
// are told nothing give a whole machine 32768.
const (
	leastTasks  = 4096
	tasksPerCPU = 512
)

// tasksOf is how many processes and threads a guest may have.
func tasksOf(cpus int) int { return max(leastTasks, tasksPerCPU*cpus) }

// holdTasks holds a contained group to so many processes and threads, and moves
// processes there where that is a tree of its own. Where the kernel has no controller
// for it nothing is held.
func (g *Groups) holdTasks(at string, most int, pids []int) error {
	dir, own := g.tasks(at)
	if dir == "" {
		return nil
	}
	if own {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	} else if give(path.Dir(at), "+pids") != nil {
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

// tasks is the folder in which the kernel is told, and whether it is in a tree of its
// own; empty: there is none.
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
