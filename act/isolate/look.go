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

// world is what the kernel says of all that may be changed.
type world struct {
	online    fleet.CPUSet
	tickless  fleet.CPUSet // whose timer tick can stop
	settings  []setting
	threads   []thread // the kernel's own
	processes []process
	cpuset    cpuset
	groups    []group // those inside before those around them; the root is none
	guests    string  // path of the guests' group
}

// form is how a setting is written.
type form string

const (
	list form = "list" // of CPUs
	mask form = "mask" // of CPUs
	zero form = "zero" // a switch that is to be off
	slow form = "slow" // a time that is to be long
)

// setting is one file of the kernel's.
type setting struct {
	path, text string
	form       form
	what       string // for people
	err        error  // why it cannot be read
}

// thread is one of the kernel's own.
type thread struct {
	id    int
	born  uint64 // by which it is told from a later one of the same number
	name  string
	bound bool // the kernel does not let it go elsewhere
	cpus  fleet.CPUSet
}

// process is one of somebody's.
type process struct {
	pid      int
	name     string
	group    string // of cpuset
	parted   bool   // its threads are in several
	choosing bool   // it has chosen CPUs itself
	cpus     fleet.CPUSet
	guest    bool
}

// cpuset is how the kernel is told which processes run on which CPUs.
type cpuset struct {
	version int    // 0: there is none
	root    string // folder
	granted bool   // of version 2: groups below the root have it
	given   string // of version 2: what they have
	mems    string // of version 1
}

// group is one whose processes are kept to CPUs; text is empty if to none of its
// own.
type group struct{ path, text string }

const (
	procs   = "cgroup.procs"
	control = "cgroup.subtree_control"
	cpuFile = "cpuset.cpus"
	memFile = "cpuset.mems"

	// rest is the group of all but guests, where the kernel needs one.
	rest = "/pagurus-rest"
)

func (w world) at(group string) string { return filepath.Join(w.cpuset.root, group) }

func readWorld(online fleet.CPUSet, guests string) (w world, err error) {
	w = world{online: online, guests: "/" + guests}
	w.tickless, _ = readCPUs("/sys/devices/system/cpu/nohz_full") // there is none without
	w.settings = settings()
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

func settings() (out []setting) {
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
		// What it is for is a folder beside its settings.
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

// findCPUSet looks for where the kernel takes what processes run where.
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

// readGroups reads the groups that are kept to CPUs: of version 1 all, of
// version 2 the outermost.
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

// readProcesses reads all that run. What ends meanwhile is left out.
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

// The kernel's flags of a thread, as sched.h has them.
const (
	flagKernel = 0x00200000
	flagBound  = 0x04000000
)

// readThread reads a thread, and whether it is the kernel's own.
func readThread(pid, tid int) (t thread, kernel bool, err error) {
	text, err := readText(fmt.Sprintf("/proc/%d/task/%d/stat", pid, tid))
	if err != nil {
		return t, false, err
	}
	// The name is in brackets and may have any in it.
	begin, end := strings.Index(text, "("), strings.LastIndex(text, ")")
	if begin < 0 || end < begin {
		return t, false, fmt.Errorf("%q is not a thread", text)
	}
	words := strings.Fields(text[end+1:])
	const flags, start = 6, 19 // counted from what follows the name
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

func setAffinity(tid int, cpus fleet.CPUSet) error {
	var s unix.CPUSet
	for _, c := range cpus {
		s.Set(c)
	}
	return unix.SchedSetaffinity(tid, &s)
}

// readProcess reads the rest of a process whose first thread is known.
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

// groupOf gives the group of a thread that says where it runs, and whether it is
// a guest's in any way.
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

// within reports whether a group is another or inside it.
func within(path, group string) bool { return path == group || strings.HasPrefix(path, group+"/") }
