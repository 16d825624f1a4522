package kernelstate

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pagurus/act/container/memory"
	"pagurus/act/host"
)

// part handles one kind of kernel state.
type part struct {
	name string // of its file among the images
	// noteState records state at the source; nil: there is none. If its error wraps
	// criu.ErrTransient, the move is tried again a moment later. Any other error ends the move,
	// and the container continues.
	noteState func(*Container) (any, error)
	// restore applies the recorded state at the target. An error ends the move.
	restore func(*Container, []byte) error
}

// parts are applied in this order, at the source and at the target.
var parts = []part{
	{"attributes", noteAttributes, restoreAttributes},
	{"sockets", noteSockets, restoreSockets},
	{"timerfd", noteTimers, restoreTimers},
}

// NoteState records, in the folder of CRIU's images, the state that CRIU does not dump of
// the container with this first process. All its processes must be suspended.
func NoteState(pid int, images string) error {
	c, err := find(pid)
	if err != nil {
		return err
	}
	for _, p := range parts {
		noted, err := p.noteState(c)
		if err != nil {
			return err
		}
		if noted == nil {
			continue
		}
		text, err := json.Marshal(noted)
		if err == nil {
			err = os.WriteFile(p.file(images), text, 0o600)
		}
		if err != nil {
			return fmt.Errorf("record %s: %w", p.name, err)
		}
	}
	return nil
}

// Restore applies the state that NoteState recorded to the restored container with this first
// process. None of its processes may have run yet. deliver delivers an IP packet to the
// container as if it came from its network.
func Restore(pid int, images string, deliver func(packet []byte) error) (Rest, error) {
	var c *Container
	for _, p := range parts {
		text, err := os.ReadFile(p.file(images))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil && c == nil {
			if c, err = find(pid); err == nil {
				c.deliver = deliver
			}
		}
		if err == nil {
			err = p.restore(c, text)
		}
		if err != nil {
			return Rest{}, fmt.Errorf("restore %s: %w", p.name, err)
		}
	}
	if c == nil {
		return Rest{}, nil
	}
	return c.rest, nil
}

// Rest is work that Restore leaves to its caller.
type Rest struct {
	Calls []memory.Call // system calls that threads must make themselves before they continue
	Said  []string      // what this host cannot provide, for people to read
}

func (p part) file(images string) string { return filepath.Join(images, "pagurus-"+p.name+".json") }

// Container holds a container's processes.
type Container struct {
	Processes []Process
	rest      Rest
	deliver   func(packet []byte) error
}

// say records something that this host cannot provide.
func (c *Container) say(format string, args ...any) {
	c.rest.Said = append(c.rest.Said, fmt.Sprintf(format, args...))
}

// Process is a process of a container. Inside is its number in the container, which is
// the same at source and target; PID is its number on this host.
type Process struct {
	PID, Inside int
	Threads     []Thread
}

// Thread is a thread of a process, numbered as a Process is.
type Thread struct {
	TID, Inside int
}

func find(first int) (*Container, error) {
	c := &Container{}
	for _, pid := range host.Family(first) {
		p := Process{PID: pid}
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return nil, fmt.Errorf("list the threads of process %d: %w", pid, err)
		}
		for _, task := range tasks {
			t := Thread{}
			if t.TID, err = strconv.Atoi(task.Name()); err == nil {
				t.Inside, err = inside(pid, t.TID)
			}
			if err != nil {
				return nil, err
			}
			if t.TID == pid {
				p.Inside = t.Inside
			}
			p.Threads = append(p.Threads, t)
		}
		c.Processes = append(c.Processes, p)
	}
	return c, nil
}

// inside returns a thread's number in its own namespace.
func inside(pid, tid int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", pid, tid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			f := strings.Fields(rest)
			return strconv.Atoi(f[len(f)-1])
		}
	}
	return 0, fmt.Errorf("/proc/%d/task/%d/status has no NSpid", pid, tid)
}

// Process finds a process by its number in the container.
func (c *Container) Process(inside int) (Process, bool) {
	i := slices.IndexFunc(c.Processes, func(p Process) bool { return p.Inside == inside })
	if i < 0 {
		return Process{}, false
	}
	return c.Processes[i], true
}

// File is an open descriptor of a process with its name in /proc ("socket:[123]",
// "anon_inode:[timerfd]", a path).
type File struct {
	FD   int
	Name string
}

// Files lists a process's open files.
func (p Process) Files() ([]File, error) {
	folder := fmt.Sprintf("/proc/%d/fd", p.PID)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("list the files of process %d in the container: %w", p.Inside, err)
	}
	var all []File
	for _, e := range entries {
		name, err := os.Readlink(filepath.Join(folder, e.Name()))
		fd, wrong := strconv.Atoi(e.Name())
		if err == nil && wrong == nil {
			all = append(all, File{fd, name})
		}
	}
	return all, nil
}

// Borrow opens, in this process, the same open file description that a process has.
// Changes to it apply to that process, too. The caller must close it.
func (p Process) Borrow(fd int) (int, error) {
	handle, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return -1, fmt.Errorf("open process %d in the container: %w", p.Inside, err)
	}
	defer unix.Close(handle)
	ours, err := unix.PidfdGetfd(handle, fd, 0)
	if err != nil {
		return -1, fmt.Errorf("borrow descriptor %d of process %d in the container: %w", fd, p.Inside, err)
	}
	return ours, nil
}
