// This file keeps each CPU of a guest on one of the host's CPUs while a guest of that host moves. Where more threads want to run
// than there are CPUs, as during a copy, a guest's CPU was seen to wait for some hundred milliseconds beside others of the same weight.
// Linux weighs a control group on each CPU by what its threads have lately run there (calc_group_shares in kernel/sched/fair.c),
// which is little where a thread has just arrived. One that stays gets its share.

package qemu

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"pagurus/fleet"
	"pagurus/internal/thread"
)

// still knows why guests' CPUs stay where they are: the guests that move from or to this host.
type still struct {
	mu     sync.Mutex
	moving map[fleet.GuestID]bool
}

// keepStill keeps the CPUs of all guests that run here where they are, until the guest's move has ended: letGoOf.
func (d *Driver) keepStill(id fleet.GuestID) {
	d.still.mu.Lock()
	defer d.still.mu.Unlock()
	if d.still.moving == nil {
		d.still.moving = map[fleet.GuestID]bool{}
	}
	d.still.moving[id] = true
	floating, loaded := d.floating()
	place(floating, loaded)
	for _, t := range floating {
		d.bind(t, fleet.CPUSet{t.last})
	}
}

// letGoOf ends keepStill for a guest. A guest for which it was not called changes nothing.
func (d *Driver) letGoOf(id fleet.GuestID) {
	d.still.mu.Lock()
	defer d.still.mu.Unlock()
	if !d.still.moving[id] {
		return
	}
	if delete(d.still.moving, id); len(d.still.moving) == 0 {
		d.letFloat()
	}
}

// letFloat lets all threads of guests go where the kernel likes, also those that an earlier agent kept, and those that a kept thread has made.
// None is in a hurry any more.
func (d *Driver) letFloat() {
	guests, _ := d.guests.All()
	for _, g := range guests {
		r := g.Remembered()
		relax(r.Process.PID)
		if r.Layout == nil || len(r.Layout.Pins) == 0 {
			threads, may := threadsOf(r.Process.PID)
			d.bind(floater{threads: threads}, may)
		}
	}
}

// bind is best effort: a thread that cannot be bound runs all the same.
func (d *Driver) bind(t floater, to fleet.CPUSet) {
	for _, id := range t.threads {
		if err := keepThread(id, to); err != nil {
			d.config.Log.Warn("a guest's CPU is scheduled less well while it moves", "cause", err)
		}
	}
}

// floater is a CPU of a guest that no layout pins.
type floater struct {
	threads []int        // its own, and of a guest that does not move QEMU's first one with the first CPU: that brings it its frames
	may     fleet.CPUSet // where it may run
	last    int          // where it ran last
}

// floating finds them, and how many guests' CPUs are pinned to each of the host's.
func (d *Driver) floating() (all []floater, loaded map[int]int) {
	loaded = map[int]int{}
	guests, err := d.guests.All()
	if err != nil {
		return nil, nil // the driver is closed
	}
	for _, g := range guests {
		r := g.Remembered()
		if r.Layout != nil && len(r.Layout.Pins) > 0 {
			for _, pin := range r.Layout.Pins {
				for _, cpu := range pin {
					loaded[cpu]++
				}
			}
			continue
		}
		if !r.Target {
			its := floatersOf(r.Process.PID)
			if len(its) > 0 && !d.still.moving[g.ID] { // what copies a guest is made by its first thread, and would stay with it
				its[0].threads = append(its[0].threads, r.Process.PID)
			}
			all = append(all, its...)
		}
	}
	return all, loaded
}

// cpuThread begins the name of a thread of QEMU that runs a guest's CPU (-name debug-threads=on).
const cpuThread = "CPU "

// floatersOf finds the CPUs of a guest by its process; none if it has ended.
func floatersOf(pid int) (all []floater) {
	threads, may := threadsOf(pid)
	for _, id := range threads {
		if last, err := lastRun(taskOf(pid, id)); err == nil && strings.HasPrefix(threadName(pid, id), cpuThread) {
			all = append(all, floater{threads: []int{id}, may: may, last: last})
		}
	}
	return all
}

// threadsOf gives the threads of a process, and where any of them may run: most are never bound.
func threadsOf(pid int) (threads []int, may fleet.CPUSet) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, task := range tasks {
		id, _ := strconv.Atoi(filepath.Base(task))
		if cpus, err := thread.CPUs(id); err == nil {
			threads, may = append(threads, id), append(may, cpus...)
		}
	}
	slices.Sort(may)
	return threads, slices.Compact(may)
}

func taskOf(pid, id int) string { return fmt.Sprintf("/proc/%d/task/%d", pid, id) }

// threadName is empty for a thread that has ended.
func threadName(pid, id int) string {
	name, _ := os.ReadFile(filepath.Join(taskOf(pid, id), "comm"))
	return string(name)
}

// lastRun is the CPU on which a thread ran last (proc_pid_stat(5), field 39).
func lastRun(task string) (int, error) {
	text, err := os.ReadFile(filepath.Join(task, "stat"))
	if err != nil {
		return 0, err
	}
	const processor = 39 - 3 // counted from the field after the name
	words := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(words) <= processor {
		return 0, fmt.Errorf("%q is not a thread", text)
	}
	return strconv.Atoi(words[processor])
}

// place gives each of them one of the least loaded CPUs where it may run: the one where it ran last, if that is one.
func place(all []floater, loaded map[int]int) {
	for i, t := range all {
		if len(t.may) == 0 {
			continue
		}
		least := t.last
		if !t.may.Has(least) {
			least = t.may[0]
		}
		for _, cpu := range t.may {
			if loaded[cpu] < loaded[least] {
				least = cpu
			}
		}
		all[i].last = least
		loaded[least]++
	}
}
