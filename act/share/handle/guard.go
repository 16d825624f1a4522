package handle

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// The names under which pagurus-shim becomes a guard, and the step before the server.
const (
	GuardName  = "pagurus-files"
	serverName = "pagurus-file-server"
)

// Shims are the processes that this package starts, by their names.
var Shims = map[string]func(args []string) error{GuardName: guard, serverName: serve}

const (
	// keyFile is the guard's descriptor of its key, which nobody else can read from there.
	keyFile = 3
	// toGuard is the step's descriptor of a socket to the guard.
	toGuard = 3
	// answering is how many calls are answered at a time: an open may wait for a disk.
	answering = 4
)

// Command is the command line of a guard, which is run in a jail as itself. shim is the path of
// pagurus-shim, unsigned whether handles without a signature count too, trees the served directories.
func Command(shim string, unsigned bool, trees []string, program []string) []string {
	args := []string{GuardName, shim, strconv.FormatBool(unsigned), strconv.Itoa(len(trees))}
	return append(append(args, trees...), program...)
}

// orders are what a guard was told.
type orders struct {
	shim     string
	unsigned bool
	trees    []string
	program  []string
}

func read(args []string) (o orders, err error) {
	if len(args) < 4 {
		return o, errors.New("the command line is too short")
	}
	if o.unsigned, err = strconv.ParseBool(args[1]); err != nil {
		return o, err
	}
	n, err := strconv.Atoi(args[2])
	if err != nil || n < 0 || len(args) < 4+n {
		return o, fmt.Errorf("there are no %s directories on the command line", args[2])
	}
	o.shim, o.trees, o.program = args[0], args[3:3+n], args[3+n:]
	return o, nil
}

// guard starts the server and answers its calls for handles until it ends.
func guard(args []string) error {
	runtime.LockOSThread() // rights are a thread's
	o, err := read(args)
	if err != nil {
		return err
	}
	key, err := readKey()
	if err != nil {
		return err
	}
	own, err := rights()
	if err != nil {
		return err
	}
	// The server of a job of root is as much as this process, but for the rights to look into it.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("close the guard's memory: %w", err)
	}
	// What is started from here on gets no other rights than start gives it.
	if err := own.keepFromOthers(); err != nil {
		return err
	}
	child, listener, err := o.start(own)
	if err != nil {
		return err
	}
	g := &answerer{key: key, unsigned: o.unsigned, own: own, server: child.Process.Pid, listener: listener, stands: &standIns{}}
	if g.places, err = own.placesOf(o.trees); err != nil {
		return err
	}
	if g.pidfd, err = unix.PidfdOpen(g.server, 0); err != nil {
		return fmt.Errorf("hold on to the server: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	return g.guard(ended) // with this process, the first of its namespace, all others end
}

// guard answers calls until the server has ended, or nobody answers any more: then the agent starts another.
func (a *answerer) guard(ended <-chan error) error {
	failed := make(chan error, answering)
	for range answering {
		each := *a
		go func() { failed <- each.answerAll() }()
	}
	var wrong error
	for range answering {
		select {
		case err := <-failed:
			wrong = errors.Join(wrong, err)
		case err := <-ended:
			return fmt.Errorf("the server has ended: %w", errors.Join(err, wrong))
		}
	}
	return fmt.Errorf("nobody answers the server's calls any more: %w", wrong)
}

func readKey() ([]byte, error) {
	f := os.NewFile(keyFile, "key")
	defer f.Close()
	key, err := io.ReadAll(io.LimitReader(f, KeyBytes+1))
	if err == nil && len(key) != KeyBytes {
		err = fmt.Errorf("it has %d bytes", len(key))
	}
	if err != nil {
		return nil, fmt.Errorf("read the key: %w", err)
	}
	return key, nil
}

// start starts the server, by the step before it, and gets the listener for its calls.
func (o orders) start(own held) (*exec.Cmd, int, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, err
	}
	theirs := os.NewFile(uintptr(pair[1]), "socket")
	defer unix.Close(pair[0])
	cmd := &exec.Cmd{Path: o.shim, Args: append([]string{serverName}, o.program...), Env: os.Environ(), Stdout: os.Stdout, Stderr: os.Stderr, ExtraFiles: []*os.File{theirs}, SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}}
	if own.roots {
		for _, c := range rootsServer {
			cmd.SysProcAttr.AmbientCaps = append(cmd.SysProcAttr.AmbientCaps, uintptr(c))
		}
	}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return nil, 0, fmt.Errorf("start the server: %w", err)
	}
	rights := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(pair[0], make([]byte, 1), rights, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, 0, fmt.Errorf("hear from the server: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		return nil, 0, errors.Join(errors.New("the server ended before it began"), err, cmd.Wait())
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, 0, fmt.Errorf("hear from the server: %d descriptors, %w", len(fds), err)
	}
	return cmd, fds[0], nil
}
