// Package cgroup keeps guests in cgroups: one for each host, with a CPU limit for all its
// guests together, and in it one for each guest, with a weight and optionally a limit.
//
// It does not know what the processes are. It supports both versions of cgroups. Its
// tests use the kernel: the machine's own version, and version 2 inside a guest.
package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	cgroups "github.com/containerd/cgroups/v3"
	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// Groups is one host's cgroup and its children.
type Groups struct {
	root string  // as "/pagurus-host1"
	cpus float64 // limit of all; 0: none
	tree tree

	slices bool // the kernel supports time slices

	counting sync.Mutex
	counted  map[fleet.GuestID]*counted // by Count
}

// limits are a group's limits.
type limits struct {
	weight float64 // in CPUs; 0: as one CPU
	cpus   float64 // limit; 0: none
}

// tree is one version of the kernel's interface. Paths are relative to its root.
type tree interface {
	// make makes a group, or changes its limits. A group that is idle keeps its lack of
	// weight.
	make(path string, l limits) error
	add(path string, pid int) error
	remove(path string) error
	used(path string) (time.Duration, error)
	// idle makes a group use only idle CPU time, or ends that.
	idle(path string, on bool) error
	processes(path string) ([]int, error)
}

// period is the interval for CPU limits: a group that has used its share is stopped for
// the rest of it. With the kernel's default of 100 ms a guest with 0.6 CPUs would stop
// for 40 ms at a time.
const period = 20 * time.Millisecond

// leastQuota is the kernel's minimum.
const leastQuota = time.Millisecond

func quota(cpus float64) time.Duration {
	return max(leastQuota, time.Duration(cpus*float64(period)))
}

// Open makes the host's group, named as "pagurus-host1", in which all guests together may
// use cpus CPUs; 0: no limit. Existing guests stay.
func Open(name string, cpus float64) (*Groups, error) {
	root, err := rootOf(name)
	if err != nil {
		return nil, err
	}
	if cpus < 0 {
		return nil, fmt.Errorf("a ceiling of %g CPUs cannot be kept", cpus)
	}
	g := &Groups{root: root, cpus: cpus, slices: SlicesMissing() == ""}
	switch mode := cgroups.Mode(); mode {
	case cgroups.Unified:
		g.tree = unified{}
	case cgroups.Legacy, cgroups.Hybrid:
		g.tree, err = openLegacy()
	default:
		err = errors.New("no control groups are mounted at /sys/fs/cgroup")
	}
	if err == nil {
		err = g.tree.make(root, limits{cpus: cpus})
	}
	if err != nil {
		return nil, fmt.Errorf("make the control group %s: %w", root, err)
	}
	return g, nil
}

func rootOf(name string) (string, error) {
	root := path.Clean("/" + name)
	if root == "/" || strings.ContainsAny(name, "\x00\n") {
		return "", fmt.Errorf("%q is not the name of a control group", name)
	}
	return root, nil
}

func (g *Groups) of(guest fleet.GuestID) (string, error) {
	if guest == "" || guest[0] == '.' || strings.ContainsAny(string(guest), "/\x00\n") {
		return "", fmt.Errorf("%q is not the name of a guest", string(guest))
	}
	return path.Join(g.root, string(guest)), nil
}

// Place moves a process with all its threads to the guest's group, whose weight is that
// of cpus CPUs. After an error the group may exist without the process.
func (g *Groups) Place(guest fleet.GuestID, pid, cpus int) error {
	return g.place(guest, pid, limits{weight: float64(cpus)})
}

func (g *Groups) place(guest fleet.GuestID, pid int, l limits) error {
	at, err := g.of(guest)
	if err == nil {
		err = g.tree.make(at, l)
	}
	if err == nil {
		err = g.tree.add(at, pid)
	}
	if err != nil {
		return fmt.Errorf("limit guest %s: %w", guest, err)
	}
	return nil
}

// removeLimit: the kernel takes a moment to see a group empty after its last process has
// ended.
const (
	removeLimit = 2 * time.Second
	removeAgain = 10 * time.Millisecond
)

// Remove removes the guest's group. A missing group is not an error; one with processes
// is.
func (g *Groups) Remove(guest fleet.GuestID) error {
	at, err := g.of(guest)
	if err == nil {
		err = g.remove(at)
	}
	if err != nil {
		return fmt.Errorf("remove the control group of guest %s: %w", guest, err)
	}
	return nil
}

func (g *Groups) remove(at string) error {
	for begun := time.Now(); ; time.Sleep(removeAgain) {
		err := g.removeContained(at)
		if err == nil {
			err = g.tree.remove(at)
		}
		if err == nil || time.Since(begun) > removeLimit {
			return err
		}
	}
}

// Used is the CPU time of all the host's guests since the group was made.
func (g *Groups) Used() (time.Duration, error) {
	return g.tree.used(g.root)
}

// UsedBy is the CPU time of one guest.
func (g *Groups) UsedBy(guest fleet.GuestID) (time.Duration, error) {
	at, err := g.of(guest)
	if err != nil {
		return 0, err
	}
	return g.tree.used(at)
}

// Close removes the host's group, and unused ones above it. Remaining guests are an
// error; to let them run on do not call it.
func (g *Groups) Close() error {
	if err := g.remove(g.root); err != nil {
		return fmt.Errorf("remove the control group %s: %w", g.root, err)
	}
	for at := path.Dir(g.root); at != "/"; at = path.Dir(at) {
		if g.removeContained(at) != nil || g.tree.remove(at) != nil {
			break // another host's group is in it
		}
	}
	return nil
}

// weightOf is a weight in the kernel's units.
func weightOf(l limits, perCPU int) uint64 {
	if l.weight <= 0 {
		l.weight = 1
	}
	return uint64(max(1, l.weight*float64(perCPU)))
}

// setIdle writes to a group's cpu.idle, which is missing before Linux 5.15; then weights
// must do.
func setIdle(folder string, on bool) error {
	value := "0"
	if on {
		value = "1"
	}
	return gone(write(folder, "cpu.idle", value))
}

func isIdle(folder string) bool {
	text, err := os.ReadFile(filepath.Join(folder, "cpu.idle"))
	return err == nil && strings.TrimSpace(string(text)) == "1"
}

// readProcesses reads the PIDs in a group's cgroup.procs.
func readProcesses(folder string) ([]int, error) {
	text, err := os.ReadFile(filepath.Join(folder, "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	var out []int
	for _, field := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, err
		}
		out = append(out, pid)
	}
	return out, nil
}

// gone ignores errors about something that is already removed.
func gone(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}
