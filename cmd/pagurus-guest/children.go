package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// children starts processes and reaps every one that ends: its own, and programs' orphans,
// which the kernel gives to the first process. So os/exec cannot be used: its Wait and this
// one would take each other's results.
type children struct {
	mu      sync.Mutex // held over fork, so that a child is known before it can be reaped
	waiting map[int]chan fleet.Exit
}

func newChildren() *children { return &children{waiting: map[int]chan fleet.Exit{}} }

// user is the user of a process.
type user struct {
	UID, GID uint32
	Groups   []uint32
}

// command is a process to start.
type command struct {
	path  string
	args  []string
	env   []string
	dir   string
	user  user
	files [3]*os.File
}

// start runs a command in a session of its own. ended receives its exit. After an error
// nothing runs.
func (c *children) start(cmd command) (pid int, ended <-chan fleet.Exit, err error) {
	attr := &syscall.ProcAttr{
		Dir: cmd.dir,
		Env: cmd.env,
		Sys: &syscall.SysProcAttr{Setsid: true},
	}
	if os.Geteuid() == 0 { // as in every guest
		attr.Sys.Credential = &syscall.Credential{Uid: cmd.user.UID, Gid: cmd.user.GID, Groups: cmd.user.Groups}
	}
	for _, f := range cmd.files {
		attr.Files = append(attr.Files, f.Fd())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	pid, err = syscall.ForkExec(cmd.path, cmd.args, attr)
	if err != nil {
		return 0, nil, fmt.Errorf("starting %s: %w", cmd.path, err)
	}
	exit := make(chan fleet.Exit, 1)
	c.waiting[pid] = exit
	return pid, exit, nil
}

// reap reaps children until this process ends. It sleeps until SIGCHLD.
func (c *children) reap() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCHLD)
	for {
		c.reapAll()
		<-signals
	}
}

func (c *children) reapAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if exit := c.waiting[pid]; exit != nil {
			exit <- exitOf(status)
			delete(c.waiting, pid)
		}
	}
}

// exitOf gives a process's exit as a shell does.
func exitOf(status unix.WaitStatus) fleet.Exit {
	if status.Signaled() {
		name := unix.SignalName(status.Signal())
		if name == "" {
			name = fmt.Sprintf("signal %d", int(status.Signal()))
		}
		return fleet.Exit{Code: 128 + int(status.Signal()), Signal: name}
	}
	return fleet.Exit{Code: status.ExitStatus()}
}

// signal sends a signal to a process started here and to its session's first group, unless
// it has been reaped: its PID may then be another's.
func (c *children) signal(pid int, sig unix.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting[pid] != nil {
		unix.Kill(-pid, sig)
	}
}
