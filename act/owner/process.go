package owner

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// whose says which side a process belongs to.
type whose int

const (
	nobodys whose = iota // not counted
	ours                 // Pagurus's own, outside of its guests' group
	theirs               // in the relevant namespace, not Pagurus's
	kernels              // kernel threads
)

// table is the relevant processes of the machine. Finding a process's side costs several
// calls, so it is cached; each scan renews a part, because processes change.
type table struct {
	config    Config
	side      whose // the side whose use is summed
	self      int
	programs  []os.FileInfo // Pagurus's
	namespace string        // network namespace in the kernel's notation
	known     map[int]*process
	names     bool // names matter, so each scan reads all of them
	turn      int
	begun     bool
	sum       time.Duration // the account
	buffer    []byte
}

// process is a process's last known state.
type process struct {
	started uint64 // ticks since boot: with the PID, its unique identity
	parent  int
	used    time.Duration // including children it has waited for
	counted time.Duration // part of used that is in the sum
	whose   whose
	name    string
	seen    bool
	ended   bool // a zombie
	kernel  bool // a kernel thread
}

// rescanEvery is the number of scans in which every process is renewed.
const rescanEvery = 30

func newTable(c Config) (*table, error) {
	t := &table{config: c, side: ours, self: os.Getpid(), known: map[int]*process{}, buffer: make([]byte, 4096)}
	if c.Scope == Network {
		t.side = theirs
	}
	for _, path := range append([]string{"/proc/self/exe"}, c.Programs...) {
		program, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("open the owner's sensors: %w", err)
		}
		t.programs = append(t.programs, program)
	}
	var err error
	// The thread's, not the process's: a lab's agent may have been started from another
	// namespace.
	if t.namespace, err = os.Readlink("/proc/thread-self/ns/net"); err != nil {
		return nil, fmt.Errorf("open the owner's sensors: %w", err)
	}
	return t, nil
}

// scan updates the table.
func (t *table) scan() error {
	entries, err := processes()
	if err != nil {
		return err
	}
	t.turn = (t.turn + 1) % rescanEvery
	for _, pid := range entries {
		p := t.known[pid]
		switch {
		case p == nil:
			p = &process{}
			if !t.learn(pid, p) {
				continue
			}
			t.known[pid] = p
			if !t.begun {
				p.counted = p.used // it existed before the account
			}
		case pid%rescanEvery == t.turn || p.whose == ours && pid != t.self || t.renamed(pid, p):
			was := p.whose
			if !t.learn(pid, p) {
				continue // it has ended and stays unseen
			}
			if was != t.side && p.whose == t.side {
				p.counted = p.used
			}
		}
		p.seen = true
	}
	t.begun = true
	t.forget()
	return nil
}

// forget drops processes that have ended. Their use is now also in their parent's
// account, and would count twice if the parent is on the same side.
func (t *table) forget() {
	gone := map[int]*process{}
	for pid, p := range t.known {
		if !p.seen {
			gone[pid] = p
			delete(t.known, pid)
		}
		p.seen = false
	}
	for _, p := range gone {
		heir := p.parent
		for range len(gone) { // a chain of processes that ended since the last scan
			if between := gone[heir]; between != nil {
				heir = between.parent
			}
		}
		if by := t.known[heir]; p.whose == t.side && by != nil && by.whose == t.side {
			t.sum -= p.counted
		}
	}
}

// used returns the account's total. It rereads each of its processes.
func (t *table) used() time.Duration {
	t.sum += t.account(t.side)
	return t.sum
}

// account returns what processes have used since the last call.
func (t *table) account(of whose) (sum time.Duration) {
	for pid, p := range t.known {
		if p.whose != of {
			continue
		}
		was := p.started
		if !t.read(pid, p) || p.started != was {
			p.started = was // the next scan identifies its successor, if any
			continue
		}
		sum += p.used - p.counted
		p.counted = p.used
	}
	return sum
}

// renamed reports whether a process runs another program, if that matters. Kernel threads
// change their names with their work.
func (t *table) renamed(pid int, p *process) bool {
	if !t.names || p.kernel {
		return false
	}
	name, err := t.text(pid, "comm")
	return err == nil && string(bytes.TrimSuffix(name, []byte("\n"))) != p.name
}

func (t *table) runs(name string) bool {
	for _, p := range t.known {
		if p.name == name && (p.whose == theirs || t.config.Scope != Network && p.whose == nobodys) {
			return true
		}
	}
	return false
}

// learn determines everything about a process; false: it has ended.
func (t *table) learn(pid int, p *process) bool {
	if !t.read(pid, p) {
		return false
	}
	if p.ended {
		// It has no namespace any more, only an account, which its parent is about to
		// get. If it was never seen, only the parent's counts.
		return t.known[pid] == p
	}
	if p.kernel {
		if p.whose = kernels; t.grouped(pid) {
			p.whose = nobodys // a guest's network has such threads, before Linux 6.4
		}
		return true
	}
	here := true
	if t.config.Scope == Network {
		ns, err := os.Readlink(at(pid, "ns/net"))
		here = err == nil && ns == t.namespace
	}
	switch {
	case here && t.own(pid, p):
		p.whose = ours
		if t.grouped(pid) {
			p.whose = nobodys // it is in the group's account
		}
	case here && t.config.Scope == Network:
		p.whose = theirs
	default:
		p.whose = nobodys
	}
	return true
}

// own reports whether a process is Pagurus's.
func (t *table) own(pid int, p *process) bool {
	if pid == t.self || p.parent == t.self || t.grouped(pid) {
		return true
	}
	exe, err := os.Stat(at(pid, "exe"))
	if err == nil && slices.ContainsFunc(t.programs, func(p os.FileInfo) bool { return os.SameFile(p, exe) }) {
		return true
	}
	if t.config.Run == "" {
		return false
	}
	line, err := t.text(pid, "cmdline")
	return err == nil && bytes.Contains(line, []byte(path.Clean(t.config.Run)+"/"))
}

// grouped reports whether a process is in the guests' cgroup.
func (t *table) grouped(pid int) bool {
	if t.config.Group == "" {
		return false
	}
	text, err := t.text(pid, "cgroup")
	if err != nil {
		return false
	}
	group := path.Clean("/" + t.config.Group)
	for line := range bytes.Lines(text) {
		_, where, _ := bytes.Cut(bytes.TrimSpace(line), []byte("/"))
		if in := "/" + string(where); in == group || strings.HasPrefix(in, group+"/") {
			return true
		}
	}
	return false
}

// read reads a process's account; false: it has ended.
func (t *table) read(pid int, p *process) bool {
	text, err := t.text(pid, "stat")
	if err != nil {
		return false
	}
	// The second field, the name, is in parentheses and may contain anything.
	open, shut := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || shut < open {
		return false
	}
	fields := bytes.Fields(text[shut+1:])
	if len(fields) < 20 {
		return false
	}
	number := func(i int) uint64 {
		n, _ := strconv.ParseUint(string(fields[i]), 10, 64) // the kernel writes digits
		return n
	}
	started := number(19)
	p.started, p.parent, p.name = started, int(number(1)), string(text[open+1:shut])
	p.ended = fields[0][0] == 'Z' || fields[0][0] == 'X'
	p.kernel = number(6)&kernelThread != 0
	p.used = ticks(number(11) + number(12) + number(13) + number(14))
	return true
}

// kernelThread is PF_KTHREAD.
const kernelThread = 1 << 21

// text reads a small file of a process. The result is valid until the next call.
func (t *table) text(pid int, name string) ([]byte, error) {
	fd, err := unix.Open(at(pid, name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	n, err := unix.Read(fd, t.buffer)
	_ = unix.Close(fd) // it was only read
	if err != nil {
		return nil, err
	}
	return t.buffer[:max(n, 0)], nil
}

func at(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }

// processes returns all PIDs.
func processes() ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	_ = dir.Close() // it was only read
	if err != nil {
		return nil, err
	}
	out := make([]int, 0, len(names))
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		if pid, err := strconv.Atoi(name); err == nil {
			out = append(out, pid)
		}
	}
	return out, nil
}

func sortedKeys(m map[string]string) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
