package memory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/container/shim"
)

// A separate process, a part of this program, stops processes to take their userfaultfds.
// A tracer takes part in what the traced process's parent waits for, and that parent may
// be this process. The separate process also ends what it began if this process is killed
// meanwhile.

// stealerName is the name under which the program runs as that process.
const stealerName = "pagurus-pages"

// stealerSocket is the descriptor on which it answers.
const stealerSocket = 3

// takenUffd is its answer for one process. The userfaultfd comes with it unless there is
// an error.
type takenUffd struct {
	PID     int
	Stopped time.Duration // how long the process's thread was stopped
	Ended   bool          // the process
	Error   string
	uffd    int
}

// highest is the highest priority of normal scheduling.
const highest = -20

// answerBytes is more than the size of an answer.
const answerBytes = 4096

// takeUffds is all that the separate process does: it answers for each of the processes
// and ends.
func takeUffds(pids []string) error {
	// Tracing belongs to a thread. When this one ends, with the process, the
	// kernel lets go of what would not stop.
	runtime.LockOSThread()
	// While this thread waits for a processor, the process's thread is stopped.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Nice: highest}, 0)
	for _, text := range pids {
		pid, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		uffd, stopped, err := steal(pid)
		answer := takenUffd{PID: pid, Stopped: stopped, Ended: errors.Is(err, errEnded)}
		var rights []byte
		if err != nil {
			answer.Error = err.Error()
			answer.Error = answer.Error[:min(len(answer.Error), answerBytes/2)]
		} else {
			rights = unix.UnixRights(uffd)
		}
		text, err := json.Marshal(answer)
		if err != nil || unix.Sendmsg(stealerSocket, text, rights, nil, 0) != nil {
			return nil // the receiver has ended; the userfaultfd is closed with this process
		}
		if uffd >= 0 {
			_ = unix.Close(uffd)
		}
	}
	return nil
}

// borrow gets a userfaultfd of each process, or an error in its answer. After an error of its
// own it holds none.
func borrow(ctx context.Context, pids []int) (list []takenUffd, err error) {
	defer func() {
		if err != nil {
			for _, l := range list {
				l.drop()
			}
			list = nil
		}
	}()
	conn, theirs, err := socketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	cmd := exec.Command(shim.Program())
	cmd.Args, cmd.Dir = []string{stealerName}, "/"
	for _, pid := range pids {
		cmd.Args = append(cmd.Args, strconv.Itoa(pid))
	}
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // signals for this process's group are not for it
	err = cmd.Start()
	if err := errors.Join(err, theirs.Close()); err != nil {
		return nil, fmt.Errorf("start the process that stops others: %w", err)
	}
	// The process is not killed when ctx ends, because a process that it has just stopped would
	// be lost. It fails to send its answer and ends.
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	go func() { _ = cmd.Wait() }()
	for len(list) < len(pids) {
		l, err := receive(conn)
		if ctx.Err() != nil {
			l.drop()
			return list, ctx.Err()
		}
		if err != nil {
			return list, fmt.Errorf("ask the process that stops others: %w", err)
		}
		list = append(list, l)
	}
	return list, nil
}

// socketPair returns a connection and its other end.
func socketPair(kind int) (*net.UnixConn, *os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a pair of sockets: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "socket"), os.NewFile(uintptr(pair[1]), "socket")
	conn, err := net.FileConn(ours)
	if err := errors.Join(err, ours.Close()); err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return conn.(*net.UnixConn), theirs, nil
}

// receive receives one answer.
func receive(conn *net.UnixConn) (l takenUffd, err error) {
	l.uffd = -1
	text, rights := make([]byte, answerBytes), make([]byte, unix.CmsgSpace(4))
	n, extra, _, _, err := conn.ReadMsgUnix(text, rights)
	if err == nil && n == 0 {
		err = io.ErrUnexpectedEOF // it died
	}
	if err != nil {
		return l, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:extra])
	if err == nil && len(messages) > 0 {
		var fds []int
		if fds, err = unix.ParseUnixRights(&messages[0]); err == nil {
			l.uffd = fds[0]
			unix.CloseOnExec(l.uffd)
		}
	}
	if err != nil {
		return l, err
	}
	return l, json.Unmarshal(text[:n], &l)
}

// drop closes the userfaultfd, which ends the tracking of the process.
func (l takenUffd) drop() {
	if l.uffd >= 0 {
		_ = unix.Close(l.uffd)
	}
}
