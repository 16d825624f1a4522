package isolate

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	threads "pagurus/internal/thread"
)

// world is all kernel state that isolation may change.
type world struct {
	online    fleet.CPUSet
	tickless  fleet.CPUSet // CPUs whose timer tick can stop
	settings  []setting
	threads   []thread // kernel threads
	processes []process
	cpuset    cpuset
	groups    []group // inner groups before outer ones, without the root
	guests    string  // path of the guests' group
}

// form is the format of a setting.
type form string

const (
	list form = "list" // list of CPUs
	mask form = "mask" // mask of CPUs
	zero form = "zero" // a switch to turn off
	slow form = "slow" // an interval to lengthen
)

// setting is one file of the kernel.
type setting struct {
	path, text string
	form       form
	what       string // for people
	err        error  // error when reading it
}

// thread is a kernel thread.
type thread struct {
	id    int
	born  uint64 // start time: distinguishes it from a later thread with the same ID
	name  string
	bound bool // the kernel does not let it move
	cpus  fleet.CPUSet
}

// process is a process of the machine.
type process struct {
	pid      int
	name     string
	group    string // in cpuset
	parted   bool   // its threads are in different groups
	choosing bool   // it has set its CPUs itself
	cpus     fleet.CPUSet
	guest    bool
}

// cpuset is the kernel's interface for restricting processes to CPUs.
type cpuset struct {
	version int    // 0: none
	root    string // its folder
	granted bool   // version 2: enabled for groups below the root
	given   string // version 2: the root's enabled controllers
	mems    string // version 1
}

// group is a group with restricted CPUs; text is empty if it has none of its own.
type group struct{ path, text string }

const (
	procs   = "cgroup.procs"
	control = "cgroup.subtree_control"
	cpuFile = "cpuset.cpus"
	memFile = "cpuset.mems"

	// rest is the group for all other processes, where the kernel needs one.
	rest = "/pagurus-rest"
)

// cgroupPath returns the path of a group, or of a file of the root group.
func (w world) cgroupPath(name string) string { return filepath.Join(w.cpuset.root, name) }

// readWorld reads the kernel's present state.
func readWorld(online fleet.CPUSet, guests string) (w world, err error) {
	w = world{online: online, guests: "/" + guests}
	w.tickless, _ = readCPUs("/sys/devices/system/cpu/nohz_full") // missing unless configured
	w.settings = readSettings()
	if w.cpuset, err = findCPUSet(); err != nil {
		return w, err
	}
	if w.cpuset.version > 0 {
		if w.groups, err = readGroups(w.cpuset); err != nil {
			return w, err
		}
	}
	err = w.readProcesses()
	return w, err
}

// readSettings reads all settings that isolation may change.
func readSettings() (out []setting) {
	for _, s := range []setting{
		{path: "/proc/sys/kernel/timer_migration", form: zero, what: "timers that go to CPUs that are not idle"},
		{path: "/proc/sys/kernel/watchdog_cpumask", form: list, what: "the kernel's watchdog"},
		{path: "/proc/sys/vm/stat_interval", form: slow, what: "the kernel's statistics of memory"},
		{path: "/sys/devices/virtual/workqueue/cpumask", form: mask, what: "the kernel's work queues"},
		{path: "/proc/irq/default_smp_affinity", form: mask, what: "new interrupts"},
	} {
		out = append(out, s.read())
	}
	folders, _ := filepath.Glob("/proc/irq/[0-9]*")
	for _, f := range folders {
		name := filepath.Base(f)
		// The folder beside the settings has the name of the interrupt's driver.
		if all, err := os.ReadDir(f); err == nil {
			if i := slices.IndexFunc(all, fs.DirEntry.IsDir); i >= 0 {
				name += " (" + all[i].Name() + ")"
			}
		}
		s := setting{path: f + "/smp_affinity_list", form: list, what: "interrupt " + name}.read()
		if !gone(s.err) {
			out = append(out, s)
		}
	}
	return out
}

func (s setting) read() setting {
	s.text, s.err = readText(s.path)
	return s
}

func readText(path string) (string, error) {
	text, err := os.ReadFile(path)
	return strings.TrimSpace(string(text)), err
}

func readCPUs(path string) (fleet.CPUSet, error) {
	text, err := readText(path)
	if err != nil {
		return nil, err
	}
	s, err := fleet.ParseCPUs(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return s, nil
}

// findCPUSet finds the kernel's cpuset interface.
func findCPUSet() (cpuset, error) {
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		return cpuset{}, err
	}
	defer f.Close()
	var out cpuset
	for lines := bufio.NewScanner(f); lines.Scan(); {
		w := strings.Fields(lines.Text())
		if len(w) < 4 {
			continue
		}
		switch {
		case w[2] == "cgroup" && slices.Contains(strings.Split(w[3], ","), "cpuset"):
			mems, err := readText(filepath.Join(w[1], memFile))
			return cpuset{version: 1, root: w[1], mems: mems}, err
		case w[2] == "cgroup2" && out.version == 0:
			all, err := readText(filepath.Join(w[1], "cgroup.controllers"))
			if err != nil {
				return out, err
			}
			if !slices.Contains(strings.Fields(all), "cpuset") {
				continue
			}
			out = cpuset{version: 2, root: w[1]}
			if out.given, err = readText(filepath.Join(w[1], control)); err != nil {
				return out, err
			}
			out.granted = slices.Contains(strings.Fields(out.given), "cpuset")
		}
	}
	return out, nil
}

// readGroups reads the groups with restricted CPUs: in version 1 all, in version 2 the
// outermost.
func readGroups(c cpuset) (out []group, err error) {
	err = filepath.WalkDir(c.root, func(at string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || at == c.root {
			if gone(err) {
				return nil
			}
			return err
		}
		inside, err := filepath.Rel(c.root, at)
		if err != nil {
			return err
		}
		text, err := readText(filepath.Join(at, cpuFile))
		if err != nil && !gone(err) {
			return err
		}
		out = append(out, group{"/" + inside, text})
		if c.version == 2 {
			return filepath.SkipDir
		}
		return nil
	})
	slices.Reverse(out)
	return out, err
}

// readProcesses reads all processes. It omits those that end meanwhile.
func (w *world) readProcesses() error {
	all, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range all {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		t, kernel, err := readThread(pid, pid)
		if err != nil {
			continue
		}
		if kernel {
			w.threads = append(w.threads, t)
		} else if p, err := w.readProcess(t); err == nil {
			w.processes = append(w.processes, p)
		}
	}
	return nil
}

// The kernel's thread flags, as in sched.h.
const (
	flagKernel = 0x00200000
	flagBound  = 0x04000000
)

// readThread reads a thread, and whether it is a kernel thread.
func readThread(pid, tid int) (t thread, kernel bool, err error) {
	text, err := readText(fmt.Sprintf("/proc/%d/task/%d/stat", pid, tid))
	if err != nil {
		return t, false, err
	}
	// The name is in parentheses and may contain any.
	begin, end := strings.Index(text, "("), strings.LastIndex(text, ")")
	if begin < 0 || end < begin {
		return t, false, fmt.Errorf("%q is not a thread", text)
	}
	words := strings.Fields(text[end+1:])
	const flags, start = 6, 19 // counted from the field after the name
	if len(words) <= start {
		return t, false, fmt.Errorf("%q is not a thread", text)
	}
	f, err1 := strconv.ParseUint(words[flags], 10, 64)
	born, err2 := strconv.ParseUint(words[start], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return t, false, err
	}
	t = thread{id: tid, born: born, name: text[begin+1 : end], bound: f&flagBound != 0}
	t.cpus, err = threads.CPUs(tid)
	return t, f&flagKernel != 0, err
}

// setAffinity restricts a thread to CPUs.
func setAffinity(tid int, cpus fleet.CPUSet) error {
	var s unix.CPUSet
	for _, c := range cpus {
		s.Set(c)
	}
	return unix.SchedSetaffinity(tid, &s)
}

// readProcess reads the rest of a process from its first thread.
func (w *world) readProcess(first thread) (p process, err error) {
	p = process{pid: first.id, name: fmt.Sprintf("%d (%s)", first.id, first.name), cpus: first.cpus}
	if p.group, p.guest, err = w.groupOf(p.pid, p.pid); err != nil {
		return p, err
	}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.pid))
	if err != nil {
		return p, err
	}
	for _, e := range tasks {
		tid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		cpus, err := threads.CPUs(tid)
		if err != nil {
			continue
		}
		p.choosing = p.choosing || !slices.Equal(cpus, w.online)
		p.cpus = append(p.cpus, cpus...)
		if w.cpuset.version == 1 && tid != p.pid {
			at, _, err := w.groupOf(p.pid, tid)
			p.parted = p.parted || err == nil && at != p.group
		}
	}
	slices.Sort(p.cpus)
	p.cpus = slices.Compact(p.cpus)
	return p, nil
}

// groupOf returns the group that restricts a thread, and whether it belongs to a guest.
func (w *world) groupOf(pid, tid int) (at string, guest bool, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/cgroup", pid, tid))
	if err != nil {
		return "", false, err
	}
	for line := range strings.Lines(string(text)) {
		part := strings.SplitN(strings.TrimRight(line, "\n"), ":", 3)
		if len(part) < 3 {
			continue
		}
		guest = guest || within(part[2], w.guests)
		old := slices.Contains(strings.Split(part[1], ","), "cpuset")
		if w.cpuset.version == 1 && old || w.cpuset.version == 2 && part[0] == "0" {
			at = part[2]
		}
	}
	return at, guest, nil
}

// within reports whether a group is equal to or inside another.
func within(path, group string) bool { return path == group || strings.HasPrefix(path, group+"/") }
