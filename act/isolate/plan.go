package isolate

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// slowInterval is the interval, in seconds, of the kernel's statistics on each CPU.
const slowInterval = 10

// plan returns the changes, in order, that isolate CPUs for guests. It is pure. What
// cannot be done is in r.
func plan(w world, isolated fleet.CPUSet, r remarks) (todo []change) {
	others := w.online.Minus(isolated)
	for _, s := range w.settings {
		if s.err != nil {
			r.add(reason(s.err), s.what)
		} else if to, differs := target(s, isolated, others, r); differs {
			todo = append(todo, change{Do: write, Path: s.path, Before: s.text, Back: s.text, after: to, what: s.what})
		}
	}
	todo = append(todo, planThreads(w.threads, isolated, others, r)...)
	switch w.cpuset.version {
	case 1:
		todo = append(todo, planOld(w, isolated, others, r)...)
	case 2:
		todo = append(todo, planNew(w, isolated, others, r)...)
	default:
		r.add("the cpuset controller is not mounted", "other people's processes")
	}
	if ticks := isolated.Minus(w.tickless); len(ticks) > 0 {
		r.add("only nohz_full= on the kernel's command line stops it; `pagurus isolate --boot`, on the machine itself, prepares that", "the timer tick of CPUs "+ticks.String())
	}
	if slices.ContainsFunc(w.processes, func(p process) bool { return strings.HasSuffix(p.name, "(irqbalance)") }) {
		r.add("it may take interrupts back; stop it, or give it IRQBALANCE_BANNED_CPULIST="+isolated.String(), "irqbalance")
	}
	return todo
}

// target is the wanted value of a setting, and whether it differs.
func target(s setting, isolated, others fleet.CPUSet, r remarks) (to string, differs bool) {
	var have fleet.CPUSet
	var err error
	switch s.form {
	case zero:
		return "0", s.text != "0"
	case slow:
		n, err := strconv.Atoi(s.text)
		return strconv.Itoa(slowInterval), err != nil || n < slowInterval
	case list:
		have, err = fleet.ParseCPUs(s.text)
	case mask:
		have, err = parseMask(s.text)
	}
	if err != nil {
		r.add(err.Error(), s.what)
		return "", false
	}
	if !have.Meets(isolated) {
		return "", false
	}
	want := without(have, isolated, others)
	if s.form == mask {
		return formatMask(want), true
	}
	return want.String(), true
}

// without is a set without the isolated CPUs, or the others if that is empty.
func without(have, isolated, others fleet.CPUSet) fleet.CPUSet {
	if left := have.Minus(isolated); len(left) > 0 {
		return left
	}
	return others
}

func planThreads(all []thread, isolated, others fleet.CPUSet, r remarks) (todo []change) {
	for _, t := range all {
		switch {
		case !t.cpus.Meets(isolated), follows(t.name):
		case t.bound:
			r.add("the kernel binds them to their CPUs", t.name)
		default:
			to := without(t.cpus, isolated, others)
			todo = append(todo, change{Do: keepThread, Thread: t.id, Born: t.born, Before: t.cpus.String(), Back: t.cpus.String(), after: to.String(), what: "thread " + t.name})
		}
	}
	return todo
}

// follows reports whether a kernel thread follows its interrupt or work queue.
func follows(name string) bool {
	return strings.HasPrefix(name, "irq/") || strings.HasPrefix(name, "kworker/u") || strings.HasPrefix(name, "kworker/R")
}

// ours reports whether a group was made by this package.
func (w world) ours(path string) bool { return within(path, rest) || within(path, w.guests) }

// planOld is for version 1, whose root group always has all CPUs: its processes must move
// to a new group. An outer group must have its inner groups' CPUs.
func planOld(w world, isolated, others fleet.CPUSet, r remarks) (todo []change) {
	for _, g := range w.groups {
		if w.ours(g.path) {
			continue
		}
		todo = append(todo, planGroup(w, g, isolated, others, r)...)
	}
	for _, made := range []struct {
		path string
		cpus fleet.CPUSet
	}{{rest, others}, {w.guests, isolated}} {
		todo = append(todo, change{Do: mkdir, Path: w.cgroupPath(made.path), Back: w.cgroupPath("/"),
			first: [][2]string{{cpuFile, made.cpus.String()}, {memFile, w.cpuset.mems}}, what: "the control group " + made.path})
	}
	return todo
}

// planGroup keeps a foreign group off the isolated CPUs.
func planGroup(w world, g group, isolated, others fleet.CPUSet, r remarks) []change {
	have, err := fleet.ParseCPUs(g.text)
	what := "the control group " + g.path
	if err != nil {
		r.add(err.Error(), what)
		return nil
	}
	if w.cpuset.version == 2 && len(have) == 0 {
		have = w.online // its parent's
	}
	if !have.Meets(isolated) {
		return nil
	}
	if len(have.Minus(isolated)) == 0 {
		r.add("their creator keeps them on these CPUs", what)
		return nil
	}
	return []change{{Do: write, Path: w.cgroupPath(g.path) + "/" + cpuFile, Before: g.text, Back: g.text, after: without(have, isolated, others).String(), what: what}}
}

// planNew is for version 2: each group below the root is kept off, and the root's
// processes move to a new group.
func planNew(w world, isolated, others fleet.CPUSet, r remarks) (todo []change) {
	if !w.cpuset.granted {
		todo = append(todo, change{Do: write, Path: w.cgroupPath(control), Before: w.cpuset.given, Back: "-cpuset", after: "+cpuset", what: "the cpuset controller"})
	}
	there := false
	for _, g := range w.groups {
		switch {
		case g.path == w.guests:
			there = true
			if g.text != isolated.String() {
				todo = append(todo, change{Do: write, Path: w.cgroupPath(g.path) + "/" + cpuFile, Before: g.text, Back: g.text, after: isolated.String(), what: "the control group of guests"})
			}
		case g.path != rest:
			todo = append(todo, planGroup(w, g, isolated, others, r)...)
		}
	}
	add := func(path string, cpus fleet.CPUSet) {
		todo = append(todo, change{Do: mkdir, Path: w.cgroupPath(path), Back: w.cgroupPath("/"), first: [][2]string{{cpuFile, cpus.String()}}, what: "the control group " + path})
	}
	if !there {
		add(w.guests, isolated)
	}
	if slices.ContainsFunc(w.processes, func(p process) bool { return p.group == "/" || p.group == rest }) {
		add(rest, others)
	}
	return todo
}

// moving is a process with its new group.
type moving struct {
	pid      int
	name, to string
}

// moves returns the processes that are in a wrong group. It is pure.
func moves(w world, isolated fleet.CPUSet, r remarks) (out []moving) {
	if w.cpuset.version == 0 {
		return nil
	}
	for _, p := range w.processes {
		switch {
		case p.guest && (p.group == "/" || p.group == rest):
			out = append(out, moving{p.pid, p.name, w.guests})
		case p.guest || p.group != "/":
		case p.parted:
			r.add("their threads are in control groups of their own", "process "+p.name)
		case !p.choosing:
			out = append(out, moving{p.pid, p.name, rest})
		case p.cpus.Meets(isolated):
			r.add("they run on CPUs of their own choice", "process "+p.name)
		}
	}
	return out
}

// parseMask parses the kernel's hexadecimal CPU mask, highest first.
func parseMask(text string) (out fleet.CPUSet, err error) {
	digits := strings.ReplaceAll(text, ",", "")
	for i := range digits {
		d, err := strconv.ParseUint(digits[len(digits)-1-i:len(digits)-i], 16, 4)
		if err != nil {
			return nil, fmt.Errorf("%q is not a mask of CPUs", text)
		}
		for bit := range 4 {
			if d&(1<<bit) != 0 {
				out = append(out, 4*i+bit)
			}
		}
	}
	if len(digits) == 0 {
		return nil, errors.New("an empty mask of CPUs")
	}
	return out, nil
}

func formatMask(s fleet.CPUSet) string {
	words := make([]uint32, 1)
	for _, c := range s {
		for len(words) <= c/32 {
			words = append(words, 0)
		}
		words[c/32] |= 1 << (c % 32)
	}
	var parts []string
	for _, w := range slices.Backward(words) {
		parts = append(parts, fmt.Sprintf("%08x", w))
	}
	return strings.Join(parts, ",")
}

// remarks are objects left unchanged, by reason.
type remarks map[string][]string

func (r remarks) add(why, what string) {
	if !slices.Contains(r[why], what) {
		r[why] = append(r[why], what)
	}
}

func (r remarks) refused(c change, err error) { r.add(reason(err), c.what) }

// mostNamed limits a line's length.
const mostNamed = 4

// words formats them for people, a line for each reason.
func (r remarks) words() (out []string) {
	for why, all := range r {
		named, more := all, ""
		if len(all) > mostNamed+1 {
			named, more = all[:mostNamed], fmt.Sprintf(" and %d more", len(all)-mostNamed)
		}
		out = append(out, strings.Join(named, ", ")+more+": "+why)
	}
	slices.Sort(out)
	return out
}

// reason explains the kernel's refusal for people.
func reason(err error) string {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "this kernel does not have it"
	case errors.Is(err, unix.EIO):
		return "the kernel keeps it where it is"
	case errors.Is(err, os.ErrPermission):
		return "the kernel does not let it be changed"
	case errors.Is(err, unix.EINVAL):
		return "the kernel refuses it as invalid"
	}
	var bare unix.Errno
	if errors.As(err, &bare) {
		return "the kernel refuses it: " + bare.Error()
	}
	return err.Error()
}
