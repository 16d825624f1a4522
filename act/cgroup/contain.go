package cgroup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/cgroups/v3"
	"golang.org/x/sys/unix"

	"pagurus/act/host"
	"pagurus/fleet"
)

// What holds a guest's processes to what they need: a memory limit and a limit on processes; and
// freezing, which containers need.

// inside is the group in a guest's group whose processes are frozen, in version 2.
// Version 1 has a separate tree for freezing.
const inside = "inside"

// Contain moves processes to the guest's group and sets its limits: weight from its CPUs,
// memory, and number of processes. No memory means no limit. After an error it may be
// partly done.
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

// Confine moves a process with all its threads to the guest's group and sets its limits: weight from its CPUs,
// memory, and number of threads; no memory means no limit. When the memory is used up, the kernel kills the
// guest's process and no other. A kernel without a controller has no such limit. After an error it may be partly done.
func (g *Groups) Confine(guest fleet.GuestID, need fleet.Resources, tasks, pid int) error {
	at, err := g.of(guest)
	if err == nil {
		err = g.tree.make(at, limits{weight: float64(need.CPUs)})
	}
	if err == nil {
		err = g.holdMemory(at, need.MemoryBytes, pid)
	}
	if err == nil {
		err = g.holdTasks(at, tasks, []int{pid})
	}
	if err == nil {
		err = g.tree.add(at, pid)
	}
	if err != nil {
		return fmt.Errorf("confine guest %s: %w", guest, err)
	}
	return nil
}

// holdMemory limits a group's memory, to which swap space adds nothing, and moves a process there if that is a separate tree.
func (g *Groups) holdMemory(at string, most int64, pid int) error {
	if _, old := g.tree.(legacy); !old {
		if enableController(path.Dir(at), "+memory") != nil {
			return nil
		}
		dir := filepath.Join(mountPoint, at)
		return errors.Join(limitMemory(dir, "memory.max", "max", most), setSwap(dir, "0"))
	}
	root, err := hierarchy("memory")
	if err != nil {
		return nil
	}
	dir := filepath.Join(root, at)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := limitBoth(dir, most); err != nil {
		return err
	}
	return write(dir, procs, strconv.Itoa(pid))
}

// limitMemory writes a limit to a group's file; all is the kernel's word for none.
func limitMemory(dir, file, all string, most int64) error {
	if most > 0 {
		all = strconv.FormatInt(most, 10)
	}
	return write(dir, file, all)
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
		err = limitBoth(memoryDir, memory)
		join = func(pid int) error {
			if err := g.tree.add(at, pid); err != nil {
				return err
			}
			if err := write(memoryDir, procs, strconv.Itoa(pid)); err != nil {
				return err
			}
			return write(freezer, procs, strconv.Itoa(pid))
		}
	} else if err = enableController(path.Dir(at), "+memory"); err == nil {
		err = errors.Join(limitMemory(memoryDir, "memory.max", "max", memory), setSwap(memoryDir, "0"))
	}
	for _, pid := range pids {
		if err == nil {
			err = join(pid)
		}
	}
	return err
}

// limitBoth sets the limit of a group of version 1, whose swap space counts, too: a guest that takes
// too much is not swapped out, but ends. The kernel keeps the limit of both at least as high as that of
// memory alone.
func limitBoth(dir string, most int64) error {
	const both, none = "memory.memsw.limit_in_bytes", "-1" // the file is missing if the kernel does not count swap space
	if err := gone(write(dir, both, none)); err != nil {
		return err
	}
	if err := limitMemory(dir, "memory.limit_in_bytes", none, most); err != nil {
		return err
	}
	return gone(limitMemory(dir, both, none, most))
}

// setSwap sets how much swap space a group of version 2 may use. It is not an error if the kernel does
// not count it.
func setSwap(dir, most string) error { return gone(write(dir, "memory.swap.max", most)) }

// Swap lets a guest's memory be swapped out when the host is short of memory, as suits one that is
// suspended, or ends that. With version 1 it always can be; but it never has more of
// both than its memory.
func (g *Groups) Swap(guest fleet.GuestID, on bool) error {
	if _, old := g.tree.(legacy); old {
		return nil
	}
	at, err := g.of(guest)
	if err != nil {
		return err
	}
	most := "0"
	if on {
		most = "max" // a suspended guest takes no more memory
	}
	if err := setSwap(filepath.Join(mountPoint, at), most); err != nil {
		return fmt.Errorf("let the memory of guest %s be swapped out: %w", guest, err)
	}
	return nil
}

// Unlimited says, for people, why guests' memory has no limit on this host; empty: it has one.
func Unlimited() string {
	if cgroups.Mode() != cgroups.Unified {
		if _, err := hierarchy("memory"); err == nil {
			return ""
		}
	} else if text, err := os.ReadFile(filepath.Join(mountPoint, "cgroup.controllers")); err == nil && slices.Contains(strings.Fields(string(text)), "memory") {
		return ""
	}
	return "the kernel's memory controller is off, so a guest can use up all memory of this host: start the kernel with cgroup_enable=memory and without cgroup_disable=memory (/proc/cmdline)"
}

// hasteEvery is shorter than the time after which the kernel delays moves again.
const hasteEvery = 10 * time.Millisecond

// Hasten makes moves of processes between groups fast until the context ends. The kernel
// delays the first move after a pause by a grace period of RCU, some ten milliseconds, so
// that forking need not wait for moves; moves that follow soon are not delayed
// (cgroup_threadgroup_rwsem). So it repeatedly moves this process to its own group. If
// that is not permitted, moves stay slow.
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

// ours is the folder of this process's group.
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

// enableController enables a controller for the children of a group, and for its ancestors.
func enableController(at, controller string) error {
	if at != "/" {
		if err := enableController(path.Dir(at), controller); err != nil {
			return err
		}
	}
	if err := write(filepath.Join(mountPoint, at), "cgroup.subtree_control", controller); err != nil {
		return fmt.Errorf("hold guests to what they need (%s): %w", controller, err)
	}
	return nil
}

// procs is the file for moving processes with all their threads to a group.
const procs = "cgroup.procs"

// write writes to a file of a group. If the kernel lacks the file, the error is fs.ErrNotExist: asked to
// create it, as os.WriteFile does, the kernel says that permission is denied.
func write(dir, name, text string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// places returns a group's folders for memory and freezing.
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

// Folder is the folder of the groups of all guests, with their processes; empty: nothing holds them.
func (g *Groups) Folder() string {
	_, freezer, err := g.places(g.root)
	if err != nil {
		return ""
	}
	if _, old := g.tree.(legacy); !old {
		return filepath.Dir(freezer)
	}
	return freezer
}

// hierarchies caches where version 1's controllers are mounted.
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

// Freezer is the folder for freezing a guest's group.
func (g *Groups) Freezer(guest fleet.GuestID) (string, error) {
	at, err := g.of(guest)
	if err != nil {
		return "", err
	}
	_, freezer, err := g.places(at)
	return freezer, err
}

// Freeze stops all contained processes and new ones until Thaw. It returns when they are
// stopped. After an error they run.
func (g *Groups) Freeze(guest fleet.GuestID) error {
	dir, err := g.Freezer(guest)
	if err == nil {
		err = host.Freezer(dir).Freeze()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("freeze guest %s: %w", guest, err), g.Thaw(guest))
	}
	return nil
}

// Thaw resumes them. A missing group is not an error.
func (g *Groups) Thaw(guest fleet.GuestID) error {
	dir, err := g.Freezer(guest)
	if err != nil {
		return fmt.Errorf("thaw guest %s: %w", guest, err)
	}
	if err := gone(host.Freezer(dir).Set(false)); err != nil {
		return fmt.Errorf("thaw guest %s: %w", guest, err)
	}
	return nil
}

// Members are the contained processes and their children; none if there is no group.
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

// removeContained removes Contain's parts of a group, or of the host's.
func (g *Groups) removeContained(at string) error {
	memory, freezer, err := g.places(at)
	if err != nil {
		return nil // nothing can have been made
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
