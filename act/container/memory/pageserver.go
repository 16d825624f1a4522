package memory

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"pagurus/act/container/framing"
	"pagurus/act/container/shim"
)

// Shims are the processes that this package starts, for shim.Become.
var Shims = shim.Table{pageServerName: servePages, pageProxyName: serveProxied, stealerName: takeUffds}

// pageServerName is the name under which the program runs as a page server.
const pageServerName = "pagurus-page-server"

// The descriptors that it is given.
const (
	serverConn = 3 + iota
	serverTally
)

// ready is what it writes when it has opened the memory of all processes.
const ready = "ready\n"

// ServePages starts a page server: a process that sends the memory of processes on
// request, at bytesPerSecond at most (0: no limit), to the other end of conn. It ends
// when the client wants no more or the connection ends. The processes must stay suspended
// until then. The page server records in the file tally what it has sent. ServePages
// returns its PID. After an error no page server runs. The caller keeps both files.
func ServePages(conn, tally *os.File, bytesPerSecond int64, pids []int) (pid int, err error) {
	cmd := exec.Command(shim.Program())
	cmd.Args, cmd.Dir, cmd.Env = []string{pageServerName, strconv.FormatInt(bytesPerSecond, 10)}, "/", []string{}
	for _, p := range pids {
		cmd.Args = append(cmd.Args, strconv.Itoa(p))
	}
	cmd.ExtraFiles = []*os.File{conn, tally}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return 0, fmt.Errorf("start the page server: %w", err)
	}
	word := make([]byte, len(ready))
	if _, err := io.ReadFull(out, word); err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		return 0, fmt.Errorf("start the page server: %w: %s", err, strings.TrimSpace(said.String()))
	}
	go cmd.Wait() // reaps it
	return cmd.Process.Pid, nil
}

// servePages is all that the page server does. Its arguments are the rate and the PIDs.
func servePages(args []string) error {
	bytesPerSecond, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil {
		return err
	}
	s := &pageServer{memory: map[uint32]*os.File{}, tally: os.NewFile(serverTally, "tally"), pace: framing.NewPace(bytesPerSecond)}
	for _, pid := range args[1:] {
		if err := s.open(pid); err != nil {
			return err
		}
	}
	file := os.NewFile(serverConn, "connection")
	conn, err := net.FileConn(file)
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	if _, err := os.Stdout.WriteString(ready); err != nil {
		return err
	}
	// No process reads its output from here on.
	os.Stdout.Close()
	return s.serve(conn)
}

// pageServer sends memory on request.
type pageServer struct {
	memory map[uint32]*os.File // memory of processes, by their numbers in their own pid namespace
	tally  *os.File
	pace   framing.Pace
	done   Tally
}

// open opens a process's memory. A process that has ended has no lazy pages. The same is
// true of one that is not reaped yet, for which the kernel reports ESRCH.
func (s *pageServer) open(pid string) error {
	f, err := os.Open("/proc/" + pid + "/mem")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reach the memory of process %s: %w", pid, err)
	}
	number, err := inside(pid)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	s.memory[number] = f
	return nil
}

// inside returns a process's number in its own pid namespace.
func inside(pid string) (uint32, error) {
	text, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == "NSpid:" {
			n, err := strconv.ParseUint(words[len(words)-1], 10, 32)
			return uint32(n), err
		}
	}
	return 0, fmt.Errorf("the kernel does not say which number process %s has inside", pid)
}

// serve answers requests until no more pages are wanted.
func (s *pageServer) serve(conn net.Conn) error {
	requests, buffer := bufio.NewReader(conn), make([]byte, Most)
	for {
		var b [requestBytes]byte
		if _, err := io.ReadFull(requests, b[:]); err != nil {
			return err
		}
		q := parse(b)
		if q.process == 0 {
			s.done.All = true
			return s.done.write(s.tally)
		}
		if err := q.check(); err != nil {
			return err
		}
		content := buffer[:q.bytes]
		memory := s.memory[q.process]
		if memory == nil {
			return fmt.Errorf("memory of process %d was asked for, which there is not", q.process)
		}
		if _, err := memory.ReadAt(content, int64(q.address)); err != nil {
			return fmt.Errorf("read memory of process %d: %w", q.process, err)
		}
		s.pace.Wait(len(content))
		if _, err := conn.Write(content); err != nil {
			return err
		}
		s.done.Bytes += int64(len(content))
		if err := s.done.write(s.tally); err != nil {
			return err
		}
	}
}
