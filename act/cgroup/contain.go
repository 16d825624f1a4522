package cgroup

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/cgroups/v3"
	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// What a container needs of control groups beyond a virtual machine: a ceiling
// on memory, which for a machine is its size, one on processes, which for a machine are
// its own, and to be stopped from outside.

// inside is the group in a guest's own whose processes are stopped together, of
// version 2. Version 1 has a tree of its own for that.
const inside = "inside"

// Contain moves processes to the guest's group, which is held to what the
// guest needs: its weight is that of its CPUs, its ceiling its memory, and there is
// one on its processes. No memory is no ceiling. After an error some of that may be so.
func (g *Groups) Contain(guest fleet.GuestID, need fleet.Resources, pids ...int) error {
	at, err := g.of(guest)
	if err == nil {
		err = g.tree.make(at, limits{weight: float64(need.CPUs)})
	}
	if err == nil {
		err = g.contain(at, need.MemoryBytes, pids)
	}
	if err == nil {
		err = g.holdTasks(at, tasksOf(need.CPUs), pids)
	}
	if err != nil {
		return fmt.Errorf("contain guest %s: %w", guest, err)
	}
	return nil
}

func (g *Groups) contain(at string, memory int64, pids []int) error {
	memoryDir, freezer, err := g.places(at)
	if err != nil {
		return err
	}
	for _, dir := range []string{memoryDir, freezer} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	join := func(pid int) error { return write(freezer, procs, strconv.Itoa(pid)) }
	if _, old := g.tree.(legacy); old {
		if memory <= 0 {
			memory = -1
		}
		err = write(memoryDir, "memory.limit_in_bytes", strconv.FormatInt(memory, 10))
		join = func(pid int) error {
			if err := g.tree.add(at, pid); err != nil {
				return err
			}
			if err := write(memoryDir, procs, strconv.Itoa(pid)); err != nil {
				return err
			}
			return write(freezer, procs, strconv.Itoa(pid))
		}
	} else if err = give(path.Dir(at), "+memory"); err == nil {
		most := "max"
		if memory > 0 {
			most = strconv.FormatInt(memory, 10)
		}
		err = write(memoryDir, "memory.max", most)
	}
	for _, pid := range pids {
		if err == nil {
			err = join(pid)
		}
	}
	return err
}

// hasteEvery is less than the kernel takes to go back.
const hasteEvery = 10 * time.Millisecond

// Hasten has processes move between groups without delay until the context ends.
// The kernel lets the first move of a while wait for a grace period of RCU, some ten
// milliseconds, so that forking need not wait for moves; those that follow soon wait
// for none (cgroup_threadgroup_rwsem). So this process is moved to where it is, again
// and again. Where it may not be, moves are as slow as ever.
func (g *Groups) Hasten(ctx context.Context) {
	for {
		at, err := g.ours()
		if err != nil || write(at, procs, strconv.Itoa(os.Getpid())) != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(hasteEvery):
		}
	}
}

// ours is the folder of this process's own group.
func (g *Groups) ours() (string, error) {
	paths, unified, err := cgroups.ParseCgroupFileUnified("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	if _, old := g.tree.(legacy); !old {
		return filepath.Join(mountPoint, unified), nil
	}
	root, err := hierarchy("freezer")
	return filepath.Join(root, paths["freezer"]), err
}

// give gives a controller on to the groups in a group, and to that from those above.
func give(at, controller string) error {
	if at != "/" {
		if err := give(path.Dir(at), controller); err != nil {
			return err
		}
	}
	if err := write(filepath.Join(mountPoint, at), "cgroup.subtree_control", controller); err != nil {
		return fmt.Errorf("hold guests to what they need (%s): %w", controller, err)
	}
	return nil
}

// procs is the file by which processes are moved to a group, with all their
// threads.
const procs = "cgroup.procs"

func write(dir, name, text string) error {
	return os.WriteFile(filepath.Join(dir, name), []byte(text), 0)
}

// places gives the folders of a group in which the kernel is told of memory and
// of stopping.
func (g *Groups) places(at string) (memory, freezer string, err error) {
	if _, old := g.tree.(legacy); !old {
		return filepath.Join(mountPoint, at), filepath.Join(mountPoint, at, inside), nil
	}
	if memory, err = hierarchy("memory"); err != nil {
		return "", "", err
	}
	if freezer, err = hierarchy("freezer"); err != nil {
		return "", "", err
	}
	return filepath.Join(memory, at), filepath.Join(freezer, at), nil
}

// hierarchies has where controllers of version 1 were found: they stay there.
var hierarchies sync.Map

// hierarchy finds where a controller of version 1 is mounted.
func hierarchy(controller string) (string, error) {
	if at, known := hierarchies.Load(controller); known {
		return at.(string), nil
	}
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		w := strings.Fields(lines.Text())
		if len(w) < 4 || w[2] != "cgroup" {
			continue
		}
		for _, option := range strings.Split(w[3], ",") {
			if option == controller {
				hierarchies.Store(controller, w[1])
				return w[1], nil
			}
		}
	}
	return "", errors.Join(lines.Err(), fmt.Errorf("the %s controller is not mounted", controller))
}

// Freezer is the folder by which the kernel is told to stop a guest's group.
func (g *Groups) Freezer(guest fleet.GuestID) (string, error) {
	at, err := g.of(guest)
	if err != nil {
		return "", err
	}
	_, freezer, err := g.places(at)
	return freezer, err
}

// freezeLimit is how long a process may take to stand still: one that waits for
// a disk or a file server does so in the kernel. The others are suspended meanwhile, so
// it is short.
const (
	freezeLimit = 3 * time.Second
	freezeAgain = time.Millisecond
)

// Freeze stops all processes that were contained, and those that will be, until
// Thaw. It returns when they stand still. After an error they run.
func (g *Groups) Freeze(guest fleet.GuestID) error {
	dir, err := g.Freezer(guest)
	if err == nil {
		err = g.freeze(dir)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("freeze guest %s: %w", guest, err), g.Thaw(guest))
	}
	return nil
}

func (g *Groups) freeze(dir string) error {
	_, old := g.tree.(legacy)
	for begun := time.Now(); ; time.Sleep(freezeAgain) {
		if old {
			// Said again, it counts processes anew that came meanwhile.
			if err := write(dir, "freezer.state", "FROZEN"); err != nil {
				return err
			}
		} else if err := write(dir, "cgroup.freeze", "1"); err != nil {
			return err
		}
		frozen, err := isFrozen(dir, old)
		if err != nil || frozen {
			return err
		}
		if time.Since(begun) > freezeLimit {
			return fmt.Errorf("after %s some processes are still not frozen: they wait for a disk or a file server", freezeLimit)
		}
	}
}

func isFrozen(dir string, old bool) (bool, error) {
	if old {
		text, err := os.ReadFile(filepath.Join(dir, "freezer.state"))
		return string(bytes.TrimSpace(text)) == "FROZEN", err
	}
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
	return strings.Contains("\n"+string(text), "\nfrozen 1"), err
}

// Thaw lets them run. A group that is not there is no error.
func (g *Groups) Thaw(guest fleet.GuestID) error {
	dir, err := g.Freezer(guest)
	if err != nil {
		return fmt.Errorf("thaw guest %s: %w", guest, err)
	}
	if _, old := g.tree.(legacy); old {
		err = write(dir, "freezer.state", "THAWED")
	} else {
		err = write(dir, "cgroup.freeze", "0")
	}
	if err := gone(err); err != nil {
		return fmt.Errorf("thaw guest %s: %w", guest, err)
	}
	return nil
}

// Members are the processes that were contained, and those that they started;
// none if there is no group.
func (g *Groups) Members(guest fleet.GuestID) ([]int, error) {
	dir, err := g.Freezer(guest)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, procs))
	if err := gone(err); err != nil {
		return nil, fmt.Errorf("list the processes of guest %s: %w", guest, err)
	}
	var pids []int
	for _, word := range strings.Fields(string(text)) {
		if pid, err := strconv.Atoi(word); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// removeContained removes what Contain made of a group, or of the host's.
func (g *Groups) removeContained(at string) error {
	memory, freezer, err := g.places(at)
	if err != nil {
		return nil // then nothing can have been made
	}
	dirs := []string{freezer}
	if _, old := g.tree.(legacy); old {
		dirs = append(dirs, memory)
		if tasks, _ := g.tasks(at); tasks != "" {
			dirs = append(dirs, tasks)
		}
	}
	for _, dir := range dirs {
		if err := gone(unix.Rmdir(dir)); err != nil {
			return fmt.Errorf("remove %s: %w", dir, err)
		}
	}
	return nil
}
