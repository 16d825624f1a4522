package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"pagurus/act/daemon"
	"pagurus/fleet"
)

// guestFolders begins the folders of the lab's guests: HOST/guests/GUEST, the working
// directory of the guest's QEMU.
const guestFolders = "/run/pagurus/lab/"

// copyOf is one process that is, was or will be a guest.
type copyOf struct {
	daemon.Process
	guest fleet.GuestID
	host  fleet.HostID
}

// mechanism is how guests of a kind are observed.
type mechanism struct {
	copies   func() ([]copyOf, error)
	computed func(copyOf) time.Duration // its CPU time
	ran      time.Duration              // the least CPU time between two scans that counts as running
}

// QEMU needs less than this to set up or remove a suspended virtual machine, and CRIU less
// in a container's name.
var (
	vmMechanism        = mechanism{copies, func(c copyOf) time.Duration { return computed(c.PID) }, 5 * time.Millisecond}
	containerMechanism = mechanism{containers, used, 15 * time.Millisecond}
)

// copies finds the lab's QEMUs.
func copies() ([]copyOf, error) {
	var out []copyOf
	_, err := daemon.Processes(func(pid int) bool {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil || !bytes.HasPrefix(name, []byte("qemu-system")) {
			return false
		}
		at, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
		if err != nil {
			return false
		}
		host, guest, ok := belongs(at)
		p, err := daemon.Find(pid)
		if ok && err == nil {
			out = append(out, copyOf{p, guest, host})
		}
		return false
	})
	return out, err
}

// belongs reads host and guest from a QEMU's working directory.
func belongs(folder string) (fleet.HostID, fleet.GuestID, bool) {
	rest, ours := strings.CutPrefix(strings.TrimSuffix(folder, " (deleted)"), guestFolders)
	parts := strings.Split(rest, "/")
	if !ours || len(parts) != 3 || parts[1] != "guests" {
		return "", "", false
	}
	return fleet.HostID(parts[0]), fleet.GuestID(parts[2]), true
}

// computed gives the CPU time of a QEMU's virtual CPUs; QEMU names their threads "CPU 0/KVM"
// and so on.
func computed(pid int) time.Duration { return threads(pid, "CPU ") }

// threads gives the CPU time of a process's threads whose names begin with name.
func threads(pid int, name string) time.Duration {
	all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*", pid)) // a constant pattern is well-formed
	sum := time.Duration(0)
	for _, t := range all {
		if text, err := os.ReadFile(t + "/comm"); err != nil || !strings.HasPrefix(string(text), name) {
			continue
		}
		ran := accounted(t)
		// A thread that ends frees the guest's memory, which takes some time; it then has no
		// memory itself (statm begins with a zero).
		if size, err := os.ReadFile(t + "/statm"); err == nil && !bytes.HasPrefix(size, []byte("0 ")) {
			sum += ran
		}
	}
	return sum
}

// accounted gives a thread's CPU time.
func accounted(thread string) time.Duration {
	if text, err := os.ReadFile(thread + "/sched"); err == nil {
		if ran, ok := fromSched(string(text)); ok {
			return ran
		}
	}
	text, err := os.ReadFile(thread + "/stat")
	if err != nil {
		return 0 // it has ended
	}
	return fromStat(string(text))
}

// fromSched reads the kernel's exact account of one thread, in milliseconds; not every
// kernel has it.
func fromSched(text string) (time.Duration, bool) {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(name) == "se.sum_exec_runtime" {
			ms, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return time.Duration(ms * float64(time.Millisecond)), err == nil
		}
	}
	return 0, false
}

// tick is the unit of stat in proc(5).
const tick = 10 * time.Millisecond

func fromStat(text string) time.Duration {
	words := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(words) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(words[11], 10, 64) // an invalid number counts as 0
	system, _ := strconv.ParseInt(words[12], 10, 64)
	return time.Duration(user+system) * tick
}

// runners notices when two copies of one guest run. A guest may go from an older process to
// a younger one at any moment, so within one scan both may have run. But once the younger
// has run the older must never run again.
type runners struct {
	ran   time.Duration // the least CPU time between two scans that counts as running
	scans int
	seen  map[daemon.Process]*runner
}

type runner struct {
	copyOf
	total time.Duration
	first int // the scan that saw it run first; 0: none
	last  int // the last scan that saw this process
}

// starting is more than a virtual CPU's time before it runs: on a busy machine setting up
// its thread takes several milliseconds.
const starting = 20 * time.Millisecond

// noteScan handles one scan and returns the guests that ran twice. A scan reads a guest's
// copies one after the other, so two scans may overlap in time: one whole scan must lie
// between.
func (r *runners) noteScan(all []copyOf, total func(copyOf) time.Duration) []string {
	if r.seen == nil {
		r.seen = map[daemon.Process]*runner{}
	}
	r.scans++
	running := map[fleet.GuestID][]*runner{}
	for _, c := range all {
		now := total(c)
		s, known := r.seen[c.Process]
		if !known {
			s = &runner{copyOf: c, total: now}
			r.seen[c.Process] = s
		}
		if now-s.total >= r.ran {
			running[c.guest] = append(running[c.guest], s)
			if s.first == 0 && now-s.total >= starting {
				s.first = r.scans
			}
		}
		s.total, s.last = now, r.scans
	}
	var wrong []string
	for p, s := range r.seen {
		if s.last != r.scans {
			delete(r.seen, p)
			continue
		}
		for _, other := range running[s.guest] {
			if s.first != 0 && s.first+2 <= r.scans && other.Ticks < s.Ticks {
				wrong = append(wrong, fmt.Sprintf("guest %s runs on %s (process %d) after it has run on %s (process %d)", s.guest, other.host, other.PID, s.host, s.PID))
			}
		}
	}
	return wrong
}
