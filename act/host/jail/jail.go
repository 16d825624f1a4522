package jail

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
)

// Jail is what a program has. Everything else of the host it lacks.
type Jail struct {
	UID      uint32   `json:"uid"`              // its user
	GID      uint32   `json:"gid"`              // its only group
	Rights   []int    `json:"rights,omitempty"` // the capabilities that it has, and may give to programs that it starts; root's jail needs some
	Root     string   `json:"root"`             // a folder of the host, over which the program's root is mounted where only it sees that
	Hostname string   `json:"hostname"`         // what it takes the host's name to be
	Files    []File   `json:"files"`            // of the host, at the same paths
	Devices  []Device `json:"devices"`
	Folder   string   `json:"folder"` // its working folder, one of Files
	Program  []string `json:"program"`
	Binary   string   `json:"binary,omitempty"` // the program's file; empty: the first word of Program
	Env      []string `json:"env"`
	Network  bool     `json:"network,omitempty"` // it keeps the host's; else it has none

	Scratch   string            `json:"scratch,omitempty"`    // a small folder in memory for what it writes; empty: none
	Texts     map[string]string `json:"texts,omitempty"`      // files of its own, by their paths
	MountList string            `json:"mount_list,omitempty"` // a file that lists its mounts, without saying which are in memory; empty: none

	FileBytes uint64 `json:"file_bytes"`       // the most that a file may grow to by its writing
	OpenFiles uint64 `json:"open_files"`       // the most that it may have open
	Memory    uint64 `json:"memory,omitempty"` // the most of its addresses, in bytes; 0: no limit
	Locked    uint64 `json:"locked,omitempty"` // the most of its memory that the kernel may pin, in bytes; 0: the usual, which is little
}

// File is a file or a folder of the host.
type File struct {
	Path     string `json:"path"` // absolute and clean
	Writable bool   `json:"writable,omitempty"`
	Runs     bool   `json:"runs,omitempty"` // programs and libraries in it may be executed
	Tree     int    `json:"tree,omitempty"` // the inherited descriptor of a detached mount (open_tree), with those below it, to show there; 0: what the host has at the path
}

// Device is a device file, which only the jail's user may open.
type Device struct {
	Path   string `json:"path"`
	Number uint64 `json:"number"` // as in stat(2)
}

// DeviceAt is the host's device at a path.
func DeviceAt(path string) (Device, error) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFCHR {
		err = errors.New("it is no device")
	}
	if err != nil {
		return Device{}, fmt.Errorf("find %s: %w", path, err)
	}
	return Device{Path: path, Number: st.Rdev}, nil
}

// namespaces are those that every jail has of its own.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// enterName is the name under which pagurus-shim becomes a jail's program.
const enterName = "pagurus-jail"

// Shims are the processes that this package starts, by their names.
var Shims = map[string]func(args []string) error{enterName: become}

// firstFile is the first inherited descriptor after the three standard ones.
const firstFile = 3

// readyWord is what the first process writes when it waits.
const readyWord = "ready"

// answerLimit is how long the first process may take for what takes milliseconds.
const answerLimit = 20 * time.Second

// First is a jail's first process. It waits until Enter, and ends with this process until then. So the caller can
// record it and put it in a control group, and nothing runs that nobody knows of.
type First struct {
	host.Process
	jail   Jail
	orders *os.File
	answer *os.File
}

// Start starts a jail's first process. shim is the path of pagurus-shim. The program's output goes to log, and files become
// its descriptors from 3 on. After an error no process runs.
func Start(shim string, j Jail, log *os.File, files ...*os.File) (_ *First, err error) {
	if j.UID == 0 && len(j.Rights) == 0 {
		return nil, errors.New("start a program in a jail: root without any rights cannot be jailed")
	}
	orders, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer orders.Close()
	theirs, answer, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	defer answer.Close()
	f := &First{jail: j, orders: ours, answer: theirs}
	flags := uintptr(namespaces)
	if !j.Network {
		flags |= unix.CLONE_NEWNET
	}
	cmd := &exec.Cmd{
		Path: shim, Args: []string{enterName, strconv.Itoa(len(files))}, Env: []string{}, Dir: j.Folder, Stdout: log, Stderr: log,
		ExtraFiles:  append(append([]*os.File{}, files...), orders, answer),
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Cloneflags: flags},
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start a process in namespaces of its own: %w", err), f.release())
	}
	if f.Process, err = host.Find(cmd.Process.Pid); err == nil {
		// The agent that watches the process reaps it: this one or the next.
		err = cmd.Process.Release()
	} else { // nobody will watch it
		err = errors.Join(err, cmd.Process.Kill())
		_ = cmd.Wait() // the error only says that it was killed
	}
	// This process's ends are closed, so that the other's end is noticed.
	if err = errors.Join(err, orders.Close(), answer.Close()); err == nil {
		err = f.hear(readyWord)
	}
	if err != nil {
		return nil, errors.Join(err, f.Kill())
	}
	return f, nil
}

// IsFirst reports whether a process is a jail's first one, which has not entered. Its working folder is the
// jail's already.
func IsFirst(pid int) bool { return host.IsNamed(pid, enterName) }

// Entered is a first process that has become its program, wherever that was started: Enter does nothing more. It is for who
// measures what a jail costs, and for nobody else.
func Entered(p host.Process) *First { return &First{Process: p} }

// Enter makes the process the jail's program. After an error the process has ended, or must be killed.
func (f *First) Enter() error {
	if f.orders == nil {
		return nil
	}
	text, err := json.Marshal(f.jail)
	if err != nil {
		return err
	}
	if _, err := f.orders.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("tell the first process what to do: %w", err)
	}
	if err := f.hear(""); err != nil { // it has become the program
		return err
	}
	return f.release()
}

// Kill ends a process that has not entered, and waits for its end.
func (f *First) Kill() error { return errors.Join(f.End(), f.release()) }

func (f *First) release() error {
	var errs []error
	for _, file := range []*os.File{f.orders, f.answer} {
		if file == nil {
			continue
		}
		if err := file.Close(); !errors.Is(err, os.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// hear waits for a word from the process; empty: for its end of the pipe to be closed.
func (f *First) hear(want string) error {
	if err := f.answer.SetReadDeadline(time.Now().Add(answerLimit)); err != nil {
		return err
	}
	line, err := bufio.NewReader(f.answer).ReadString('\n')
	if line = strings.TrimSpace(line); line == want && (err == nil || errors.Is(err, io.EOF)) {
		return nil
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("start a program in a jail: %w", err)
	}
	return fmt.Errorf("start a program in a jail: %s", line)
}
