// Package isolate reserves some of a machine's CPUs for guests, as far as the running
// kernel permits: it moves other processes by cpuset, interrupts, kernel threads and
// kernel timers.
//
// Changes are planned by a pure function from a snapshot of the kernel's state. Before
// each change the original value is written to a log, so that a later process can undo
// everything, also after a process was killed in between. The log's folder must not
// outlive the boot, because the settings do not; a log of another boot is ignored.
//
// It must only know of guests that their processes are in a cgroup. Its tests change this
// machine, with version 1 or 2 of cgroups, and version 2 inside a guest. They compare all
// affected settings before and after, also when killed at every step.
package isolate

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/fault"
)

// Config is the configuration of a Host.
type Config struct {
	UndoLog string // file with the original values, while they are changed
	Group   string // cgroup of all guests, as "pagurus-host1"
}

// Host is the machine. All methods may be called at any time, repeatedly.
type Host struct {
	undoLog string
	group   string // the outermost of the guests' groups
	mu      sync.Mutex
}

// New makes a Host; it changes nothing.
func New(c Config) *Host {
	first, _, _ := strings.Cut(strings.TrimPrefix(path.Clean("/"+c.Group), "/"), "/")
	return &Host{undoLog: c.UndoLog, group: first}
}

// Foreign says why the kernel's settings are not this host's own, for people; empty: they
// are.
func Foreign() string {
	// Kernel threads are only in the initial namespaces.
	name, err := os.ReadFile("/proc/2/comm")
	if err != nil || strings.TrimSpace(string(name)) != "kthreadd" {
		return "its agent runs in a container, and the settings are those of the machine below"
	}
	var own, first unix.Stat_t
	if err := errors.Join(unix.Stat("/proc/self/ns/net", &own), unix.Stat("/proc/2/ns/net", &first)); err != nil {
		return "its agent cannot tell whether the machine is its own: " + err.Error()
	}
	if own.Ino != first.Ino {
		return "it is only a network of its own on a machine that it shares, as a lab's hosts are, and the settings are those of the whole machine"
	}
	return ""
}

// On isolates CPUs for guests. A repeated call handles new processes, interrupts and
// threads. With other CPUs it first undoes the earlier ones. The answer says what the
// kernel refuses, which is not an error. After an error some or nothing may be done; Off
// undoes it.
func (h *Host) On(cpus fleet.CPUSet) (fleet.Isolation, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	q, err := h.on(cpus)
	if err != nil {
		return fleet.Isolation{}, fmt.Errorf("keep CPUs %s for guests: %w", cpus, err)
	}
	return q, nil
}

func (h *Host) on(cpus fleet.CPUSet) (fleet.Isolation, error) {
	online, err := readCPUs("/sys/devices/system/cpu/online")
	if err != nil {
		return fleet.Isolation{}, err
	}
	if err := check(cpus, online); err != nil {
		return fleet.Isolation{}, err
	}
	n, err := openUndoLog(h.undoLog)
	if err != nil {
		return fleet.Isolation{}, err
	}
	if n.exists && !slices.Equal(n.head.CPUs, cpus) {
		if err := h.off(); err != nil {
			return fleet.Isolation{}, fmt.Errorf("put back the settings for CPUs %s: %w", n.head.CPUs, err)
		}
		n = &undoLog{path: h.undoLog}
	}
	w, err := readWorld(online, h.group)
	if err != nil {
		return fleet.Isolation{}, err
	}
	if slices.ContainsFunc(w.groups, func(g group) bool { return g.path == rest }) && !n.has(change{Do: mkdir, Path: w.cgroupPath(rest)}) {
		return fleet.Isolation{}, fmt.Errorf("the control group %s is there already: another agent keeps CPUs of this machine for its guests, or did and its note is lost; sweep that agent, or restart the machine", w.cgroupPath(rest))
	}
	if err := n.beginLog(cpus); err != nil {
		return fleet.Isolation{}, err
	}
	r := remarks{}
	todo := plan(w, cpus, r)
	if err := h.carryOut(n, todo, r); err != nil {
		return fleet.Isolation{}, err
	}
	if err := h.move(w, cpus, r); err != nil {
		return fleet.Isolation{}, err
	}
	return fleet.Isolation{CPUs: cpus, Changed: n.changed(), Left: r.words()}, nil
}

func check(cpus, online fleet.CPUSet) error {
	missing := cpus.Minus(online)
	switch {
	case len(cpus) == 0:
		return errors.New("name at least one")
	case len(missing) > 0:
		return fmt.Errorf("there is no CPU %s here, or it is off: there are %s", missing, online)
	case len(online.Minus(cpus)) == 0:
		return errors.New("these are all there are; everything else needs at least one")
	}
	return nil
}

// carryOut makes the changes, each logged before. An error comes from the log or from a
// fault point.
func (h *Host) carryOut(n *undoLog, todo []change, r remarks) error {
	for i, c := range todo {
		if !n.has(c) {
			if err := n.add(c); err != nil {
				// What could be noted is put back.
				return errors.Join(fmt.Errorf("note the earlier settings, in %s: %w", h.undoLog, err), h.off())
			}
		}
		if err := fault.Point(fmt.Sprintf("isolate.noted.%d", i)); err != nil {
			return err
		}
		if err := c.do(); err != nil && !gone(err) {
			r.refused(c, err)
		}
		if err := fault.Point(fmt.Sprintf("isolate.done.%d", i)); err != nil {
			return err
		}
	}
	return nil
}

// movePasses is how often processes are moved again because new ones were started
// meanwhile. The next On finds further ones.
const movePasses = 5

// move moves processes to their groups. That is not logged: they go back when the groups
// are removed.
func (h *Host) move(w world, cpus fleet.CPUSet, r remarks) error {
	for pass := range movePasses {
		moved := 0
		for _, m := range moves(w, cpus, r) {
			switch err := os.WriteFile(w.cgroupPath(m.to)+"/"+procs, []byte(fmt.Sprint(m.pid)), 0); {
			case err == nil:
				moved++
			case !gone(err):
				r.add(reason(err), "process "+m.name)
			}
			if err := fault.Point(fmt.Sprintf("isolate.moved.%d", moved)); err != nil {
				return err
			}
		}
		if moved == 0 || pass == movePasses-1 {
			return nil
		}
		var err error
		if w, err = readWorld(w.online, h.group); err != nil {
			return err
		}
	}
	return nil
}

// Off undoes everything. Without On it does nothing. After an error everything possible
// is undone, and another call tries the rest.
func (h *Host) Off() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.off(); err != nil {
		return fmt.Errorf("put the machine's settings back: %w", err)
	}
	return nil
}

func (h *Host) off() error {
	n, err := openUndoLog(h.undoLog)
	if err != nil || !n.exists {
		return err
	}
	var errs []error
	for i, c := range slices.Backward(n.changes) {
		if err := c.undo(); err != nil && !gone(err) {
			errs = append(errs, err)
		}
		if err := fault.Point(fmt.Sprintf("isolate.undone.%d", len(n.changes)-1-i)); err != nil {
			return err
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return n.remove()
}

// Now returns the isolated CPUs according to the log; none: off.
func (h *Host) Now() (fleet.CPUSet, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n, err := openUndoLog(h.undoLog)
	if err != nil || !n.exists {
		return nil, err
	}
	return n.head.CPUs, nil
}

// gone reports that the object of a change no longer exists.
func gone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENODEV)
}
