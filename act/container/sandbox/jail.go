package sandbox

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/container/shim"
)

// Cell describes a container as its first process finds it.
type Cell struct {
	Root     string   `json:"root"` // a mount point: its path on the host
	Hostname string   `json:"hostname"`
	Hide     []string `json:"hide"`    // paths that are covered
	Mounts   []Mount  `json:"mounts"`  // in this order, on folders and files that are made if they are missing
	Program  string   `json:"program"` // its path in the container
	Env      []string `json:"env"`
	Console  string   `json:"console"` // a file for the program's output: its path in the container
}

// Mount is a folder or a file of the host that is mounted in the container.
type Mount struct {
	From     string `json:"from"`
	At       string `json:"at"`
	ReadOnly bool   `json:"read_only,omitempty"`
	Devices  bool   `json:"devices,omitempty"` // device files in it may be used
	Programs bool   `json:"programs,omitempty"`
}

// Shims are the processes that this package starts, for shim.Become.
var Shims = shim.Table{cellName: become}

// cellName is the name under which the binary runs.
const cellName = "pagurus-cell"

// The process's descriptors beyond the three standard ones.
const (
	ordersFile = 3
	answerFile = 4
)

// readyWord is what a process writes when it is waiting.
const readyWord = "ready"

// Process is a process that waits for orders.
type Process struct {
	PID    int
	orders *os.File
	answer *os.File
	cmd    *exec.Cmd
}

// answerLimit is how long a process may take for what takes milliseconds.
const answerLimit = 20 * time.Second

// NewProcess starts a process in namespaces of its own, including the network, that waits
// for Run. It ends if this process ends before Run. After an error no process runs.
func NewProcess() (*Process, error) {
	return start(command{path: shim.Program(), args: []string{cellName}}, unix.CLONE_NEWPID|unix.CLONE_NEWNS|unix.CLONE_NEWUTS|unix.CLONE_NEWIPC|unix.CLONE_NEWNET)
}

// anchorScript waits for the word to stay, and then sleeps 68 years, the longest time
// that every sleep accepts.
var anchorScript = fmt.Sprintf("command -v sleep >&2 || { echo there is no sleep >&%[2]d; exit; }; echo %[1]s >&%[2]d; exec %[2]d>&-; read word <&%[3]d && exec sleep 2147483647 %[3]d<&-",
	readyWord, answerFile, ordersFile)

// NewAnchor starts a process that only keeps a network namespace of its own in existence.
// Until Stay it ends with this process. It is a shell, which starts in a millisecond and
// takes a megabyte.
func NewAnchor() (*Process, error) {
	return start(command{"/bin/sh", []string{"sh", "-c", anchorScript}, []string{"PATH=/usr/bin:/bin"}}, unix.CLONE_NEWNET)
}

// Stay makes an anchor outlive this process. The anchor must have been recorded, so that
// the next process can find it.
func (p *Process) Stay() error {
	if _, err := p.orders.Write([]byte("stay\n")); err != nil {
		return fmt.Errorf("tell the process that holds a network to stay: %w", err)
	}
	return nil
}

type command struct {
	path      string
	args, env []string
}

// start starts a program in new namespaces, including a network, with an empty
// environment except for its own settings.
func start(what command, flags uintptr) (_ *Process, err error) {
	orders, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	theirs, answer, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, ours.Close(), orders.Close())
	}
	p := &Process{orders: ours, answer: theirs, cmd: &exec.Cmd{
		Path: what.path, Args: what.args, Env: append([]string{}, what.env...), Dir: "/",
		ExtraFiles:  []*os.File{orders, answer},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Cloneflags: flags},
	}}
	err = born(p.cmd.Start)
	if err := errors.Join(err, orders.Close(), answer.Close()); err != nil { // its end is noticed only if no other process has these
		return nil, errors.Join(fmt.Errorf("start a process in namespaces of its own: %w", err), ours.Close(), theirs.Close())
	}
	p.PID = p.cmd.Process.Pid
	if word, err := p.hear(); err != nil || word != readyWord {
		return nil, errors.Join(fmt.Errorf("start a process in namespaces of its own: it says %q", word), err, p.Kill())
	}
	return p, nil
}

// hear returns the next line that the process writes, or what it writes as it ends.
func (p *Process) hear() (string, error) {
	if err := p.answer.SetReadDeadline(time.Now().Add(answerLimit)); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(p.answer).ReadString('\n')
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return strings.TrimSpace(line), err
}

// Release releases the process, which keeps running. The process that watches it must
// reap it.
func (p *Process) Release() error {
	return errors.Join(ignoreClosed(p.orders.Close()), ignoreClosed(p.answer.Close()), p.cmd.Process.Release())
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// Kill kills the process and waits until it has ended.
func (p *Process) Kill() error {
	err := p.cmd.Process.Kill()
	_ = p.cmd.Wait() // the error only says that it was killed
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	return errors.Join(err, ignoreClosed(p.orders.Close()), ignoreClosed(p.answer.Close()))
}

// Run makes the process become the program of a cell. After an error the process has
// ended or must be killed.
func (p *Process) Run(c Cell) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if _, err := p.orders.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("tell the first process what to do: %w", err)
	}
	word, err := p.hear() // empty: it has become the program
	if err == nil && word != "" {
		err = errors.New(word)
	}
	return err
}

// become is all that a process of NewProcess does itself.
func become([]string) error {
	unix.CloseOnExec(answerFile)
	answer := os.NewFile(answerFile, "answer")
	fmt.Fprintln(answer, readyWord)
	line, err := bufio.NewReaderSize(os.NewFile(ordersFile, "orders"), 64<<10).ReadBytes('\n')
	if err != nil {
		os.Exit(1) // the process that started this one has ended
	}
	var c Cell
	if err = json.Unmarshal(line, &c); err == nil {
		err = c.enter()
	}
	// It ends instead of becoming another program.
	fmt.Fprintln(answer, strings.ReplaceAll(fmt.Sprint(err), "\n", "; "))
	os.Exit(1)
	return nil
}
