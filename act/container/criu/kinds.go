package criu

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pagurus/internal/thread"
)

// State of processes that CRIU loses, or refuses without a clear message, sometimes only
// after all memory was copied.

// kinds checks the process itself.
func (s subject) kinds() []string {
	var found []string
	folder := fmt.Sprintf("/proc/%d/", s.pid)
	threads, _ := os.ReadDir(folder + "task")
	if stat, err := os.ReadFile(folder + "stat"); err == nil && len(threads) > 1 && state(stat) == 'Z' {
		found = append(found, s.name+" goes on although its first thread has ended, and cannot move so: let that thread wait for the others (pthread_join)")
	}
	if with, what := sharing(s.pid); what != "" && !vforks(with) {
		found = append(found, fmt.Sprintf("%s shares its %s with %s and is not a thread of that (clone(2)), which cannot move: let the program make threads, or processes by fork(2)",
			s.name, what, NameOf(with)))
	}
	return found
}

// ours reports whether a tracer is a process of an agent, such as one that finds written
// memory. It releases the process in a moment, even if its agent has died.
func ours(tracer int) bool {
	its, err1 := os.Readlink(fmt.Sprintf("/proc/%d/exe", tracer))
	own, err2 := os.Readlink("/proc/self/exe")
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", tracer))
	space, err3 := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", tracer))
	here, err4 := os.Readlink("/proc/self/ns/pid")
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return false
	}
	return space == here && (its == own || strings.HasPrefix(string(name), "pagurus-"))
}

// state returns the process's state in /proc/PID/stat.
func state(stat []byte) byte {
	at := strings.LastIndexByte(string(stat), ')') + 2
	if at >= len(stat) {
		return 0
	}
	return stat[at]
}

// Resources that kcmp(2) compares.
const (
	sameMemory = 1
	sameFolder = 3
)

// sharing returns the parent of a process and the resource that both share but must not,
// or "" if there is none.
func sharing(pid int) (parent int, what string) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, ""
	}
	if parent, err = strconv.Atoi(field(text, "PPid:")); err != nil || parent <= 0 {
		return 0, ""
	}
	switch {
	case field(text, "VmSize:") == "":
	case same(parent, pid, sameMemory):
		return parent, "memory"
	case same(parent, pid, sameFolder):
		return parent, "working folder"
	}
	return 0, ""
}

func same(a, b int, kind uintptr) bool {
	differ, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kind, 0, 0, 0)
	return errno == 0 && differ == 0
}

// vforks reports whether a thread of a process waits for a child that uses the process's memory.
// It waits until the child executes another program or ends (vfork(2), posix_spawn(3)).
func vforks(pid int) bool {
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return slices.ContainsFunc(threads, func(t os.DirEntry) bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/syscall", pid, t.Name()))
		f := strings.Fields(string(text))
		if err != nil || len(f) < 2 {
			return false
		}
		call, err := strconv.Atoi(f[0])
		if err != nil {
			return false
		}
		flags, _ := strconv.ParseUint(strings.TrimPrefix(f[1], "0x"), 16, 64)
		return call == unix.SYS_VFORK || call == unix.SYS_CLONE && flags&unix.CLONE_VFORK != 0
	})
}

// Vforking names a process of a container, given its first process, that waits for a
// child that uses its memory: no signal and no tracer can stop it until then. It returns
// "" if there is none.
func Vforking(pid int) string {
	all, err := Processes(pid)
	if err != nil {
		return ""
	}
	for _, p := range all {
		if parent, what := sharing(p); what != "" && vforks(parent) {
			return NameOf(parent)
		}
	}
	return ""
}

// odd examines a file without a name. It returns "" if the file can move.
func (s subject) odd(number, what string) string {
	switch {
	case strings.HasPrefix(what, "pipe:"):
		if s.flags(number)&unix.O_DIRECT != 0 {
			return fmt.Sprintf("%s has a pipe in packet mode, as descriptor %s, which cannot move: let it open the pipe without O_DIRECT", s.name, number)
		}
	case what == "anon_inode:[pidfd]":
		if s.flags(number)&unix.O_EXCL != 0 {
			return fmt.Sprintf("%s has a handle on a thread, as descriptor %s, which cannot move: let it open one on the process, without PIDFD_THREAD", s.name, number)
		}
	case strings.HasPrefix(what, "anon_inode:"):
		if !slices.Contains(anonymous, what) {
			return foreign(s.name, what)
		}
	default:
		if kind, _, ok := strings.Cut(what, ":["); !ok || !slices.Contains(spaceFiles, kind) {
			return foreign(s.name, what)
		}
	}
	return ""
}

// spaceFiles lists the kinds of namespace whose files CRIU can dump.
var spaceFiles = []string{"net", "mnt", "pid", "ipc", "uts", "user", "cgroup", "time"}

// flags returns the flags with which a descriptor was opened.
func (s subject) flags(number string) uint64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", s.pid, number))
	flags, _ := strconv.ParseUint(field(text, "flags:"), 8, 64)
	return flags
}

// unnamed lists the names in /proc/PID/maps of memory without a file that CRIU can dump.
var unnamed = []string{"", "[heap]", "[stack]", "[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]", "[shmem]"}

// strange reports whether a mapping's kind is unknown, so that it may not be restored.
func (m mapping) strange() bool {
	return !strings.HasPrefix(m.path, "/") && !slices.Contains(unnamed, m.path) && !strings.HasPrefix(m.path, "[anon:") && !strings.HasPrefix(m.path, "[anon_shmem:")
}

// mountsOf returns the identifiers of the mounts below a process's root.
func mountsOf(pid int) map[string]bool {
	mounts := map[string]bool{}
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	for line := range strings.Lines(string(text)) {
		id, _, _ := strings.Cut(line, " ")
		mounts[id] = true
	}
	return mounts
}

// sameMounts reports whether two processes are in the same mount namespace. Their roots
// may differ.
func sameMounts(a, b int) bool {
	its, err1 := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", a))
	other, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", b))
	return err1 == nil && err2 == nil && its == other
}

// queueMagic is the file system type of POSIX message queues.
const queueMagic = 0x19800202

// queue returns a sentence if a file is a message queue, otherwise "".
func (s subject) queue(number, what string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(fmt.Sprintf("/proc/%d/fd/%s", s.pid, number), &st); err != nil || st.Type != queueMagic {
		return ""
	}
	return queued(s.name+" has", what)
}

func queued(who, what string) string {
	return fmt.Sprintf("%s the POSIX message queue %s, which cannot move: let the program close and unlink it, or use queues of System V (msgget) or sockets",
		who, printable(strings.TrimSuffix(what, " (deleted)")))
}

// queues finds the message queues of a container, whether a program has them open or not.
func queues(pid int) (found []string) {
	if sharesOurs(pid) { // they are the host's
		return nil
	}
	space, err := os.Open(fmt.Sprintf("/proc/%d/ns/ipc", pid))
	if err != nil {
		return nil
	}
	defer space.Close()
	_ = thread.Own(func() error {
		if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWIPC); err != nil {
			return err
		}
		system, err := unix.Fsopen("mqueue", unix.FSOPEN_CLOEXEC)
		if err != nil {
			return err
		}
		defer unix.Close(system)
		if err := unix.FsconfigCreate(system); err != nil {
			return err
		}
		mounted, err := unix.Fsmount(system, unix.FSMOUNT_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(mounted)
		fd, err := unix.Openat(mounted, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		folder := os.NewFile(uintptr(fd), "mqueue")
		defer folder.Close()
		names, err := folder.Readdirnames(-1)
		for _, name := range names {
			found = append(found, queued("the container has", "/"+name))
		}
		return err
	})
	return found
}
