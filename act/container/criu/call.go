package criu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/checkpoint-restore/go-criu/v8/rpc"
	"golang.org/x/sys/unix"

	"pagurus/act/host"
	"pagurus/internal/thread"
)

// refuseLimit is how long CRIU may take to reach its next step, at which it is told to
// undo what it did. After that it is killed. Writing a container's memory takes seconds.
// Only tests change it.
var refuseLimit = 20 * time.Second

const (
	// endLimit is how long CRIU may take to end after its last message.
	endLimit = 10 * time.Second
	// mostMessage is the largest size of one message, in bytes.
	mostMessage = 64 << 10
	// mostLog is how many bytes of a log are read at most.
	mostLog = 16 << 20
)

// errKilled says that CRIU ended without its last message: it was killed, and undid
// nothing.
var errKilled = errors.New("criu was killed, or died")

// call is one request to a CRIU process of its own.
//
// It speaks to CRIU directly, with go-criu's messages. go-criu's client skips the step
// before processes are resumed and takes no context. It also leaks its end of the socket
// into every other process that the agent starts meanwhile.
type call struct {
	criu       Criu
	kind       rpc.CriuReqType
	opts       *rpc.CriuOpts
	features   *rpc.CriuFeatures                      // features to ask for
	images     string                                 // empty: the call needs no images
	log        string                                 // name of the log in images
	files      []*os.File                             // CRIU's descriptors from firstFile on
	network    string                                 // file of the network namespace that CRIU is started in; empty: the caller's
	steps      map[string]func(*rpc.CriuNotify) error // called at CRIU's steps; after an error CRIU is told to undo what it did
	destroy    func(*rpc.CriuNotify, error) bool      // called before CRIU is told to undo at a step at which it ignores that; true: everything it made is gone, and CRIU may be killed; may be nil
	beforeKill func()                                 // called before CRIU is killed; may be nil
	mortal     bool                                   // CRIU is killed when this process dies
	shared     []JobFolder                            // the folders that Leave was given
	hurry      bool                                   // a container is suspended until CRIU is done
	about      int                                    // the first process of a container that lives on if the call fails; 0: none

	// The fields of a CRIU that was started.
	pid   int
	cmd   *exec.Cmd
	conn  *net.UnixConn
	said  *os.File      // what it writes before there is a log
	plain *Folder       // nil: there are no images
	ended chan struct{} // closed when it has ended
}

// hurryNice is the nice value of a CRIU for which a suspended container waits. The other ranks of
// its job wait, too, and most MPIs do that in a loop: without it CRIU would share each processor
// with some of them. Restored processes have their own nice values.
const hurryNice = -19

// firstFile is the descriptor of a call's first file. The descriptors before it are
// CRIU's own three and the socket.
const firstFile = 4

// startCriu starts a CRIU that waits for do to send its request. After an error no CRIU
// runs.
func (c *call) startCriu() (err error) {
	defer func() {
		if err != nil {
			c.free()
		}
	}()
	path := programFolders
	if c.images != "" {
		if c.plain, err = c.store(); err != nil {
			return err
		}
		path = c.plain.Path + ":" + path
	}
	if c.said, err = Memory("criu's errors"); err != nil {
		return err
	}
	if err = c.start(path); err != nil {
		return err
	}
	c.ended = make(chan struct{})
	go func(pid int, conn *net.UnixConn, ended chan struct{}) {
		hush(pid, conn)
		close(ended)
	}(c.pid, c.conn, c.ended)
	return nil
}

// do makes the call, with the CRIU that startCriu has started; if there is none, do
// starts one. If CRIU itself reports an error, it has undone what it did. After errKilled
// nothing was undone.
func (c *call) do(ctx context.Context) (*rpc.CriuResp, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if c.conn == nil {
		if c.mortal { // the kernel ends CRIU with the thread that started it
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
		}
		if err := c.startCriu(); err != nil {
			return nil, err
		}
		defer c.end()
	}
	resp, err := c.exchange(ctx, c.conn, c.cmd.Process)
	if errors.Is(err, errKilled) {
		c.kill(c.cmd.Process) // or it sent something that is not an answer
	}
	waited := c.wait()
	switch {
	case err == nil && resp.GetSuccess():
		return resp, nil
	case err == nil:
		return nil, c.why(resp.GetCrErrmsg(), c.said)
	case errors.Is(err, errKilled):
		return nil, errors.Join(fmt.Errorf("%w (%v)", err, waited), c.why("", c.said))
	}
	return nil, err
}

// wait waits until CRIU ends after its last message.
func (c *call) wait() error {
	c.conn.Close()
	timer := time.AfterFunc(endLimit, func() { c.cmd.Process.Kill() })
	defer timer.Stop()
	return c.cmd.Wait()
}

// end ends a CRIU that was started and not used.
func (c *call) end() {
	if c.cmd != nil && c.cmd.ProcessState == nil {
		_ = c.wait() // it received no request, and ends
	}
	c.free()
}

func (c *call) free() {
	if c.plain != nil {
		c.plain.Close()
	}
	if c.said != nil {
		c.said.Close()
	}
	c.plain, c.said = nil, nil
}

// hush ends reading from CRIU once CRIU has ended and its last message is read. Without
// it reading could last for ever, because the processes that CRIU has made may hold its
// end of the socket.
func hush(pid int, conn *net.UnixConn) {
	var info unix.Siginfo
	for unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	_ = conn.CloseRead() // it may be closed already
}

// store tells CRIU where its images and its log are.
func (c *call) store() (*Folder, error) {
	folder, err := Make(c.images)
	if err != nil {
		return nil, err
	}
	if err := ignoreAbsent(os.Remove(filepath.Join(c.images, c.log))); err != nil {
		folder.Close()
		return nil, fmt.Errorf("remove an older log: %w", err)
	}
	// CRIU opens the folder through this process's descriptor, so that renaming it does
	// no harm.
	fd := new(int32(folder.Images.Fd()))
	c.opts.ImagesDirFd, c.opts.WorkDirFd = fd, fd
	c.opts.LogFile, c.opts.LogLevel = new(c.log), new(int32(2))
	c.opts.NotifyScripts = new(true)
	return folder, nil
}

// Setting returns the environment variable of every CRIU that dumps to a folder or
// restores from it. It identifies the CRIU even after its caller and the container have
// died.
func Setting(images string) string { return "PAGURUS_IMAGES=" + images }

// start starts CRIU with its end of a socket.
func (c *call) start(path string) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make a socket to criu: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "to criu"), os.NewFile(uintptr(pair[1]), "from criu")
	defer ours.Close()
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return fmt.Errorf("make a socket to criu: %w", err)
	}
	cmd := exec.Command(c.criu.Path, "swrk", "3")
	cmd.Dir, cmd.Stderr = "/", c.said
	cmd.Env = append([]string{"PATH=" + path, "LC_ALL=C", Setting(c.images)}, limitsShown()...)
	cmd.ExtraFiles = append([]*os.File{theirs}, c.files...)
	// A session of its own keeps signals of the caller's terminal away from CRIU.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if c.mortal {
		cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	}
	start := cmd.Start
	if c.network != "" {
		start = func() error { return thread.Visit(c.network, cmd.Start) }
	}
	if err := start(); err != nil {
		conn.Close()
		if cmd.Process != nil { // its thread could not return to its namespace
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		return fmt.Errorf("start criu: %w", err)
	}
	c.pid, c.cmd, c.conn = cmd.Process.Pid, cmd, conn.(*net.UnixConn)
	if c.hurry {
		// It works without, too. Where the agent is in no control group of the processors', the kernel shares them among
		// sessions first (sched_autogroup), and the nice value of a process counts only in its own.
		_ = unix.Setpriority(unix.PRIO_PROCESS, c.pid, hurryNice)
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", c.pid), []byte(strconv.Itoa(hurryNice)), 0)
	}
	if !c.mortal {
		// When memory runs out, the kernel should kill another process: the processes
		// that CRIU holds would suffer. Processes that it restores would inherit this
		// setting.
		host.Spare(c.pid)
	} else {
		host.Expose(c.pid) // here they would inherit the agent's
	}
	return nil
}

// exchange sends the request, answers at each step, and returns CRIU's last message. When
// the context ends, CRIU is told to undo what it did. CRIU is killed if it does not reach
// its next step within refuseLimit.
func (c *call) exchange(ctx context.Context, conn *net.UnixConn, criu *os.Process) (*rpc.CriuResp, error) {
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-over:
			return
		case <-ctx.Done():
		}
		select {
		case <-over:
		case <-time.After(refuseLimit):
			c.kill(criu)
		}
	}()
	req := &rpc.CriuReq{Type: c.kind.Enum(), Opts: c.opts, Features: c.features}
	buffer := make([]byte, mostMessage)
	var cause error // why CRIU was told to stop
	for {
		resp, err := exchange(conn, req, buffer)
		if err != nil {
			return nil, errors.Join(errKilled, cause, err)
		}
		if resp.GetType() != rpc.CriuReqType_NOTIFY {
			return resp, cause // CRIU's own message says only that it was refused
		}
		if step := c.steps[resp.GetNotify().GetScript()]; step != nil && cause == nil {
			cause = step(resp.GetNotify())
		}
		if cause == nil && ctx.Err() != nil {
			cause = context.Cause(ctx)
		}
		if cause != nil && c.destroy != nil && c.destroy(resp.GetNotify(), cause) {
			c.kill(criu)
			return nil, cause
		}
		req = &rpc.CriuReq{Type: rpc.CriuReqType_NOTIFY.Enum(), NotifySuccess: new(cause == nil)}
	}
}

// kill kills CRIU, as the last resort.
func (c *call) kill(criu *os.Process) {
	if c.beforeKill != nil {
		c.beforeKill()
	}
	criu.Kill()
}

// exchange sends one message and receives one. An error means that CRIU has ended.
func exchange(conn *net.UnixConn, req *rpc.CriuReq, buffer []byte) (*rpc.CriuResp, error) {
	text, err := req.MarshalVT()
	if err != nil {
		return nil, fmt.Errorf("encode a request to criu: %w", err)
	}
	if _, err := conn.Write(text); err != nil {
		return nil, fmt.Errorf("send criu a request: %w", err)
	}
	n, err := conn.Read(buffer)
	if err == nil && n == 0 {
		err = io.EOF
	}
	resp := &rpc.CriuResp{}
	if err == nil {
		err = resp.UnmarshalVT(buffer[:n])
	}
	if err != nil {
		return nil, fmt.Errorf("wait for criu's answer: %w", err)
	}
	return resp, nil
}

// why returns why a call failed. It uses CRIU's log, CRIU's output before there was a log, and
// CRIU's first error, which is known even if the log is full.
func (c *call) why(first string, said *os.File) error {
	var log []byte
	if c.images != "" {
		log = readMost(filepath.Join(c.images, c.log))
	}
	if _, err := said.Seek(0, io.SeekStart); err == nil {
		early, _ := io.ReadAll(io.LimitReader(said, mostLog))
		log = append(early, log...)
	}
	sentence, rough := explain(log, first)
	if rough && c.about != 0 {
		if found := Obstacles(c.about, int64(c.opts.GetGhostLimit()), c.shared...); len(found) > 0 {
			sentence = strings.Join(found, "; ")
		}
	}
	return explained(log, sentence)
}

// readMost returns the content of a file, up to mostLog bytes.
func readMost(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	text, _ := io.ReadAll(io.LimitReader(f, mostLog))
	return text
}
