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
	"strings"
	"syscall"
	"time"

	"github.com/checkpoint-restore/go-criu/v8/rpc"
	"golang.org/x/sys/unix"
)

// refuseLimit is how long CRIU has to come to its next step, where it is told to
// undo what it did, before it is killed: to write a container's memory takes
// seconds. Only tests change it.
var refuseLimit = 20 * time.Second

const (
	// endLimit is how long it may take to end after its last word.
	endLimit = 10 * time.Second
	// mostMessage bounds what it says at once: a path, an error, a number.
	mostMessage = 64 << 10
	// mostLog bounds what is read of a log.
	mostLog = 16 << 20
)

// errKilled is an end of CRIU without its last word: it was killed, and undid
// nothing.
var errKilled = errors.New("criu was killed, or died")

// call is one request to a CRIU of its own.
//
// It speaks to CRIU itself, with go-criu's messages: go-criu's client passes
// over the step before processes are resumed, takes no context, and lets its
// end of the socket leak into whatever else the agent starts meanwhile.
type call struct {
	criu     Criu
	kind     rpc.CriuReqType
	opts     *rpc.CriuOpts
	features *rpc.CriuFeatures                      // asked for
	images   string                                 // empty: the call has to do with none
	log      string                                 // name of the log in images
	files    []*os.File                             // CRIU's descriptors from firstFile on
	steps    map[string]func(*rpc.CriuNotify) error // called at CRIU's steps; an error makes it undo what it did
	destroy  func(*rpc.CriuNotify) bool             // called before CRIU is told to do that at a step where it minds nothing; true: all it made is gone, and so may CRIU be; may be nil
	hold     func()                                 // called before CRIU is killed; may be nil
	mortal   bool                                   // CRIU is killed when this process dies
	about    int                                    // the first process of a container that lives on if the call fails; 0: there is none
	pid      int                                    // of CRIU
}

// firstFile is the descriptor of a call's first file; before it come CRIU's own
// three and the socket.
const firstFile = 4

// do makes the call. After an error of CRIU's own it has undone what it did;
// after errKilled nobody has.
func (c *call) do(ctx context.Context) (*rpc.CriuResp, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if c.mortal { // the kernel means the thread by which CRIU was started
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	path := programFolders
	if c.images != "" {
		plain, err := c.store()
		if err != nil {
			return nil, err
		}
		defer plain.Close()
		path = plain.folder + ":" + path
	}
	said, err := memory("criu's errors")
	if err != nil {
		return nil, err
	}
	defer said.Close()
	cmd, conn, err := c.start(path, said)
	if err != nil {
		return nil, err
	}
	go hush(cmd.Process.Pid, conn)
	resp, err := c.talk(ctx, conn, cmd.Process)
	if errors.Is(err, errKilled) {
		c.kill(cmd.Process) // or it said what is no answer
	}
	conn.Close()
	timer := time.AfterFunc(endLimit, func() { cmd.Process.Kill() }) // it holds nothing any more
	waited := cmd.Wait()
	timer.Stop()
	switch {
	case err == nil && resp.GetSuccess():
		return resp, nil
	case err == nil:
		return nil, c.why(resp.GetCrErrmsg(), said)
	case errors.Is(err, errKilled):
		return nil, errors.Join(fmt.Errorf("%w (%v)", err, waited), c.why("", said))
	}
	return nil, err
}

// hush ends what is read from CRIU when that has ended, after what it said last: what
// it has made so far may hold its end of the socket for ever.
func hush(pid int, conn *net.UnixConn) {
	var info unix.Siginfo
	for unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	_ = conn.CloseRead() // it may be closed already
}

// store tells CRIU where its images and its log are.
func (c *call) store() (*plainPath, error) {
	plain, err := plainFolder(c.images)
	if err != nil {
		return nil, err
	}
	if err := ignoreAbsent(os.Remove(filepath.Join(c.images, c.log))); err != nil {
		plain.Close()
		return nil, fmt.Errorf("remove an older log: %w", err)
	}
	// CRIU opens it by this process's descriptor, whatever happens to its name.
	fd := new(int32(plain.images.Fd()))
	c.opts.ImagesDirFd, c.opts.WorkDirFd = fd, fd
	c.opts.LogFile, c.opts.LogLevel = new(c.log), new(int32(2))
	c.opts.NotifyScripts = new(true)
	return plain, nil
}

// start starts CRIU with its end of a socket.
func (c *call) start(path string, said *os.File) (*exec.Cmd, *net.UnixConn, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket to criu: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "to criu"), os.NewFile(uintptr(pair[1]), "from criu")
	defer ours.Close()
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket to criu: %w", err)
	}
	cmd := exec.Command(c.criu.Path, "swrk", "3")
	cmd.Dir, cmd.Stderr = "/", said
	cmd.Env = append([]string{"PATH=" + path, "LC_ALL=C"}, limitsShown()...)
	cmd.ExtraFiles = append([]*os.File{theirs}, c.files...)
	// Not to be killed by what is typed at the caller's terminal.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if c.mortal {
		cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("start criu: %w", err)
	}
	c.pid = cmd.Process.Pid
	if !c.mortal {
		// Where memory ends, rather somebody else: what it holds would suffer.
		// What it restores would inherit this.
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", c.pid), []byte("-1000"), 0) // many a root may not
	}
	return cmd, conn.(*net.UnixConn), nil
}

// talk sends the request, answers at each step, and gives CRIU's last word. When
// the context ends CRIU is told to undo what it did, and killed if it does not
// come to its next step within refuseLimit.
func (c *call) talk(ctx context.Context, conn *net.UnixConn, criu *os.Process) (*rpc.CriuResp, error) {
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
	var cause error // why CRIU is refused to go on
	for {
		resp, err := exchange(conn, req, buffer)
		if err != nil {
			return nil, errors.Join(errKilled, cause, err)
		}
		if resp.GetType() != rpc.CriuReqType_NOTIFY {
			return resp, cause // beside which its own word says only that it was refused
		}
		if step := c.steps[resp.GetNotify().GetScript()]; step != nil && cause == nil {
			cause = step(resp.GetNotify())
		}
		if cause == nil && ctx.Err() != nil {
			cause = context.Cause(ctx)
		}
		if cause != nil && c.destroy != nil && c.destroy(resp.GetNotify()) {
			c.kill(criu)
			return nil, cause
		}
		req = &rpc.CriuReq{Type: rpc.CriuReqType_NOTIFY.Enum(), NotifySuccess: new(cause == nil)}
	}
}

// kill is the last resort.
func (c *call) kill(criu *os.Process) {
	if c.hold != nil {
		c.hold()
	}
	criu.Kill()
}

// exchange sends one message and waits for one. An error is the end of CRIU.
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
		return nil, fmt.Errorf("wait for what criu says: %w", err)
	}
	return resp, nil
}

// why says why a call failed, from CRIU's log, its first error, which it keeps
// where its log may be full, and what it wrote before there was a log.
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
		if found := Obstacles(c.about, int64(c.opts.GetGhostLimit())); len(found) > 0 {
			sentence = strings.Join(found, "; ")
		}
	}
	return explained(log, sentence)
}

// readMost gives as much of a file as there is and is sensible.
func readMost(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	text, _ := io.ReadAll(io.LimitReader(f, mostLog))
	return text
}

// plainPath is a folder for CRIU's PATH in which gzip is a program that copies.
// CRIU keeps what is in a container's file systems in memory by `tar --gzip`,
// which takes twenty times as long as not compressing.
type plainPath struct {
	folder  string
	program *os.File
	images  *os.File
}

// plainScript passes on what it is given, whichever way.
var plainScript = []byte("#!/bin/sh\nexec cat\n")

// plainFolder makes it inside the folder of images, so that what a killed agent
// leaves goes with these. The program is no file there but memory: the folder's
// file system may forbid running programs, as /run's often does, and a file just
// written cannot be run while another thread's child has it open.
func plainFolder(images string) (*plainPath, error) {
	program, err := memory("gzip")
	if err != nil {
		return nil, err
	}
	p := &plainPath{folder: filepath.Join(images, ".path"), program: program}
	_, err = program.Write(plainScript)
	if err == nil {
		p.images, err = os.Open(images)
	}
	if err == nil {
		err = os.RemoveAll(p.folder)
	}
	if err == nil {
		err = os.Mkdir(p.folder, 0o700)
	}
	if err == nil {
		err = os.Symlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), program.Fd()), filepath.Join(p.folder, "gzip"))
	}
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("make a plain gzip for criu: %w", err)
	}
	return p, nil
}

// Close removes it.
func (p *plainPath) Close() {
	_ = os.RemoveAll(p.folder) // it is in the way of nothing
	p.program.Close()
	if p.images != nil {
		p.images.Close()
	}
}

// memory is a file in memory. Others may run it, unless the host forbids that
// (vm.memfd_noexec=2).
func memory(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // Linux before 6.3, where all may be run
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
