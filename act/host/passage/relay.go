package passage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"pagurus/act/host"
)

// Relay is a process that joins a move's connections to as many sockets that QEMU makes, or takes, in the guest's folder. It is for
// moves that take more than one connection: QEMU can be given only one, and itself has no network.
// The relay outlives the agent, and ends with QEMU's sockets. The kernel moves the bytes from
// socket to socket (splice).
type Relay struct {
	Shim    string // path of pagurus-shim
	UID     uint32 // the guest's user, as whom it runs
	Folder  string // the guest's, in which it is found
	Streams []*net.TCPConn
	Log     *os.File
}

// Shims are the processes that this package starts, by their names, as parts of pagurus-shim.
var Shims = map[string]func(args []string) error{relayName: relay, writerName: write}

const (
	relayName = "pagurus-relay"
	// openedWord comes first on each connection of a relay: the source's QEMU has made this one, so the
	// target's has to be told. A connection may carry nothing for long.
	openedWord = 'o'
	// relayLimit is how long QEMU may take to make its first socket.
	relayLimit = 30 * time.Second
	// endLimit is how long the other side may take to close a connection after this side has.
	endLimit = 30 * time.Second
)

// The folder or the listener comes to the relay as this descriptor, and then the connections.
const relayFirst = 3

// FromQEMU starts the relay of a source: QEMU connects to the listener, once for each connection. The relay has copies of all.
// After an error none runs.
func (r Relay) FromQEMU(listener *net.UnixListener) error {
	file, err := listener.File()
	if err != nil {
		return err
	}
	defer file.Close()
	return r.start("from", file, 0)
}

// ToQEMU starts the relay of a target, which connects to the socket in a folder on which QEMU's process listens. It is otherwise
// like FromQEMU.
func (r Relay) ToQEMU(folder *os.File, name string, qemu int) error {
	return r.start(name, folder, qemu)
}

func (r Relay) start(what string, first *os.File, qemu int) error {
	files := []*os.File{first}
	for _, c := range r.Streams {
		f, err := c.File()
		if err != nil {
			return err
		}
		defer f.Close()
		files = append(files, f)
	}
	cmd := &exec.Cmd{
		Path: r.Shim, Args: []string{relayName, strconv.FormatUint(uint64(r.UID), 10), what, strconv.Itoa(len(r.Streams)), strconv.Itoa(qemu)}, Env: []string{}, Dir: r.Folder,
		Stdout: r.Log, Stderr: r.Log, ExtraFiles: files, SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a relay: %w", err)
	}
	go func() { _ = cmd.Wait() }() // it says in the log what went wrong; after the agent's end another reaps it
	return nil
}

// IsRelay reports whether a process is a relay or a writer.
func IsRelay(pid int) bool { return host.IsNamed(pid, relayName) || host.IsNamed(pid, writerName) }

// relay is the process.
func relay(args []string) error {
	if len(args) != 4 {
		return errors.New("a relay is started by the agent")
	}
	uid, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	streams, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	qemu, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	r := joiner{what: args[1], first: os.NewFile(relayFirst, args[1]), qemu: qemu}
	for i := range streams {
		f := os.NewFile(uintptr(relayFirst+1+i), "connection")
		c, err := net.FileConn(f)
		if err != nil {
			return err
		}
		f.Close()
		r.streams = append(r.streams, c.(*net.TCPConn))
	}
	if err := confine(uid); err != nil {
		return err
	}
	return r.run()
}

type joiner struct {
	what    string // "from", or the name of QEMU's socket in the folder
	first   *os.File
	qemu    int // who listens on that socket
	streams []*net.TCPConn
}

// run joins each connection to a socket, in their order, and returns when all have ended.
func (r joiner) run() error {
	next, stop := r.connect, func() {}
	if r.what == "from" {
		l, err := net.FileListener(r.first)
		if err != nil {
			return err
		}
		listener := l.(*net.UnixListener)
		listener.SetUnlinkOnClose(false)
		defer listener.Close()
		if err := listener.SetDeadline(time.Now().Add(relayLimit)); err != nil {
			return err
		}
		next = func(to *net.TCPConn) (*net.UnixConn, error) { return accept(listener, to) }
		stop = func() { listener.Close() }
	}
	var all sync.WaitGroup
	for i, c := range r.streams {
		socket, err := next(c)
		if err != nil { // the move fails with its first connection; without a later one it may have ended
			for _, rest := range r.streams[i:] {
				rest.Close()
			}
			all.Wait()
			if i > 0 || errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		all.Go(func() {
			join(socket, c)
			if i == 0 {
				stop() // without the first there are no others
			}
		})
	}
	all.Wait()
	return nil
}

// accept takes QEMU's next socket at the source, and tells the target.
func accept(listener *net.UnixListener, to *net.TCPConn) (*net.UnixConn, error) {
	socket, err := listener.AcceptUnix()
	if err == nil {
		err = listener.SetDeadline(time.Time{})
	}
	if err != nil {
		return nil, err
	}
	if _, err := to.Write([]byte{openedWord}); err != nil {
		socket.Close()
		return nil, err
	}
	return socket, nil
}

// connect waits until the source's QEMU has made this connection, and makes it here.
func (r joiner) connect(from *net.TCPConn) (*net.UnixConn, error) {
	var word [1]byte
	if _, err := io.ReadFull(from, word[:]); err != nil {
		return nil, err
	}
	if word[0] != openedWord {
		return nil, errors.New("the source's agent is not like this one: upgrade the older")
	}
	return host.DialSocket(context.Background(), r.first, r.what, r.qemu)
}

// join carries bytes both ways until both have ended.
func join(socket *net.UnixConn, conn *net.TCPConn) {
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(conn, socket) // why it ended QEMU says
		_ = conn.CloseWrite()
		// QEMU never ends only one way of a socket.
		_ = conn.SetReadDeadline(time.Now().Add(endLimit))
	})
	both.Go(func() {
		_, _ = io.Copy(socket, conn)
		_ = socket.CloseWrite()
		_ = socket.SetReadDeadline(time.Now().Add(endLimit))
	})
	both.Wait()
	_ = socket.Close()
	_ = conn.Close()
}
