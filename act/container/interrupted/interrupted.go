// Package interrupted makes waiting system calls continue after a move: nanosleep, poll,
// epoll_wait and others, which CRIU would make return EINTR although no signal came. It
// observes the threads before and while they are suspended (NoteWaits, Again). It then
// changes the registers in CRIU's images (Mend), or those of threads that stay
// (Continue), so that each thread calls again for the rest of its time. A wait never ends
// early. The package does not know who moves the container. The driver's tests move real
// programs; the tests here check its decisions.
package interrupted

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
)

// call is a system call that a thread executes.
type call struct {
	number    uint64
	arguments [6]uint64
	stack, at uint64 // its stack pointer, and the address after the call instruction
}

// thread describes a waiting thread.
type thread struct {
	pid, tid, inside int
	call             call
	ran              string        // when it last had a processor, as the kernel prints it
	slept            time.Duration // it has waited at least so long
	filters          string        // how many system call filters it has
	foreign          bool          // it has more filters than the container's first process
	signals          bool          // a signal is pending and ends the call
}

// Seen holds the waits that NoteWaits and Again recorded.
type Seen struct {
	first     int
	at        time.Time
	threads   map[int]*thread
	suspended bool // the threads were suspended then
}

// NoteWaits records how long the threads of a running container have been waiting, given
// its first process. Anything that it cannot find out makes waits longer, never shorter.
func NoteWaits(first int) *Seen {
	s := &Seen{first: first, threads: map[int]*thread{}}
	found := threads(first)
	clocks := clocks(found)
	s.at = time.Now()
	for tid, t := range found {
		if c, ok := clocks[processor(t)]; ok {
			ran, err := strconv.ParseFloat(t.ran, 64)
			if slept := c.now - ran; err == nil && slept > 0 {
				t.slept = time.Duration(slept*1e6) * time.Nanosecond
				t.slept -= min(t.slept, c.at.Sub(c.begun)) // the precision of the clock
				t.slept += s.at.Sub(c.at)
			}
		}
		s.threads[tid] = t
	}
	return s
}

// Again observes the threads when they are suspended, just before they are dumped.
func (s *Seen) Again() {
	now := time.Now()
	filters := filtersOf(s.first, s.first)
	found := threads(s.first)
	for tid, t := range found {
		before := s.threads[tid]
		if before != nil && t.call.number == unix.SYS_RESTART_SYSCALL {
			// Suspending it has changed the stack that showed its call.
			if t.call.number = before.call.number; t.call != before.call {
				t.call.number = unix.SYS_RESTART_SYSCALL
			}
		}
		if before != nil && before.ran == t.ran && before.call == t.call && before.slept > 0 {
			t.slept = before.slept + now.Sub(s.at) // it has not run since: it is the same wait
		}
		t.foreign = t.filters != filters
	}
	s.threads, s.at, s.suspended = found, now, true
}

// waits lists calls that do nothing before they wait. They return EINTR because a thread was
// stopped, or because CRIU does not carry the kernel's restart block.
var waits = map[uint64]bool{
	unix.SYS_READ: true, unix.SYS_READV: true, unix.SYS_WRITE: true, unix.SYS_WRITEV: true, unix.SYS_POLL: true,
	unix.SYS_NANOSLEEP: true, unix.SYS_CLOCK_NANOSLEEP: true, unix.SYS_FUTEX: true, unix.SYS_RT_SIGTIMEDWAIT: true,
	unix.SYS_EPOLL_WAIT: true, unix.SYS_EPOLL_PWAIT: true, unix.SYS_EPOLL_PWAIT2: true, unix.SYS_IO_GETEVENTS: true, unix.SYS_IO_PGETEVENTS: true,
	unix.SYS_SEMOP: true, unix.SYS_SEMTIMEDOP: true, unix.SYS_MSGRCV: true, unix.SYS_MSGSND: true,
	unix.SYS_RECVFROM: true, unix.SYS_RECVMSG: true, unix.SYS_RECVMMSG: true, unix.SYS_SENDTO: true, unix.SYS_SENDMSG: true, unix.SYS_SENDMMSG: true,
	unix.SYS_ACCEPT: true, unix.SYS_ACCEPT4: true, unix.SYS_RESTART_SYSCALL: true,
}

// threads returns the container's threads that are in such calls.
func threads(first int) map[int]*thread {
	all := map[int]*thread{}
	for _, pid := range host.Family(first) {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			continue // it has ended
		}
		for _, task := range tasks {
			tid, err := strconv.Atoi(task.Name())
			if err != nil {
				continue
			}
			folder := fmt.Sprintf("/proc/%d/task/%d/", pid, tid)
			c, ok := parseCall(folder)
			if !ok || !waits[c.number] {
				continue
			}
			t := &thread{pid: pid, tid: tid, call: c, ran: ran(folder)}
			t.status(folder)
			all[tid] = t
		}
	}
	return all
}

// parseCall reads the call that a thread executes.
func parseCall(folder string) (c call, ok bool) {
	text, err := os.ReadFile(folder + "syscall")
	f := strings.Fields(string(text))
	if err != nil || len(f) != 9 {
		return c, false
	}
	if c.number, err = strconv.ParseUint(f[0], 10, 32); err != nil {
		return c, false
	}
	for i, to := range []*uint64{&c.arguments[0], &c.arguments[1], &c.arguments[2], &c.arguments[3], &c.arguments[4], &c.arguments[5], &c.stack, &c.at} {
		if *to, err = strconv.ParseUint(f[i+1], 0, 64); err != nil {
			return c, false
		}
	}
	if c.number == unix.SYS_RESTART_SYSCALL {
		c.number = restarted(folder, c)
	}
	return c, true
}

// restarted returns the original call of a thread that is in restart_syscall. The kernel has
// forgotten the number, but the stack shows the call. For a sleep it shows only the entry into
// the kernel.
func restarted(folder string, c call) uint64 {
	text, _ := os.ReadFile(folder + "stack")
	others := ""
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, "do_syscall_64") && !strings.Contains(line, "entry_SYSCALL_64") {
			others += line
		}
	}
	switch {
	case strings.Contains(others, "poll"):
		return unix.SYS_POLL
	case strings.Contains(others, "futex"):
		return unix.SYS_FUTEX
	case len(text) == 0 || others != "" && !strings.Contains(others, "hrtimer_nanosleep"):
		return c.number
	case c.arguments[0] < 16: // a clock, where nanosleep has an address
		return unix.SYS_CLOCK_NANOSLEEP
	}
	return unix.SYS_NANOSLEEP
}

// systemCall is the machine instruction.
var systemCall = []byte{0x0f, 0x05}

// ran returns when a thread last had a processor, in milliseconds of that processor's clock.
func ran(folder string) string {
	text, _ := os.ReadFile(folder + "sched")
	_, rest, _ := strings.Cut(string(text), "se.exec_start")
	rest, _, _ = strings.Cut(rest, "\n")
	return strings.TrimLeft(rest, " :")
}

// status reads a thread's signals, filters and number in its namespace.
func (t *thread) status(folder string) {
	text, _ := os.ReadFile(folder + "status")
	var pending, blocked uint64
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		value = strings.TrimSpace(value)
		switch name {
		case "NSpid":
			f := strings.Fields(value)
			t.inside, _ = strconv.Atoi(f[len(f)-1])
		case "SigPnd", "ShdPnd":
			n, _ := strconv.ParseUint(value, 16, 64)
			pending |= n
		case "SigBlk":
			blocked, _ = strconv.ParseUint(value, 16, 64)
		case "Seccomp_filters":
			t.filters = value
		}
	}
	t.signals = pending&^blocked != 0
}

func filtersOf(pid, tid int) string {
	var t thread
	t.status(fmt.Sprintf("/proc/%d/task/%d/", pid, tid))
	return t.filters
}

// memory reads a process's memory.
func memory(pid int, at uint64, into []byte) error {
	local := unix.Iovec{Base: &into[0]}
	local.SetLen(len(into))
	n, err := unix.ProcessVMReadv(pid, []unix.Iovec{local}, []unix.RemoteIovec{{Base: uintptr(at), Len: len(into)}}, 0)
	if err == nil && n != len(into) {
		err = errors.New("there is less")
	}
	return err
}
