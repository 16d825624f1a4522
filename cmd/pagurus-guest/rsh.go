package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// Remote start: mpirun in guest 0 runs "rsh HOST COMMAND", which asks the guest agent of
// HOST to run COMMAND as the job's user. The connection is on the job's own network, which
// no other job uses, and survives moves of either guest.
//
// After a line of JSON from the caller both sides send messages: a type byte, four bytes of
// length, and the content.
const (
	// remotePort is below 1024, so that no program of the job can listen on it, and below
	// 665, the first port that the kernel's NFS client may use (sunrpc.min_resvport). It is
	// rsh's.
	remotePort = 514
	// remoteWait is how long a peer may take to become ready.
	remoteWait = 60 * time.Second
	// remoteGrace is a command's time between SIGTERM and SIGKILL after its caller has gone.
	remoteGrace = 5 * time.Second

	// mostCommand is how much of a command the guest's log has.
	mostCommand = 100

	messageHead = 5
	messageMax  = 64 << 10
)

// The messages.
const (
	sendStdin  = 'i' // to the peer; empty: end of input
	sendStdout = 'o'
	sendStderr = 'e'
	sendExit   = 'x' // the last one; four bytes of exit code
)

// remoteRequest is the first line of a connection.
type remoteRequest struct {
	Command string   `json:"command"`
	Env     []string `json:"env"`

	Signal *fleet.Signal `json:"signal,omitempty"` // for the ranks in this guest, instead of a command; the answer is their number
}

// keepAlive finds a permanently lost peer within an hour. Shorter silences are allowed,
// since a move may last minutes.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Minute, Interval: 5 * time.Minute, Count: 10}

// messages writes messages from several goroutines.
type messages struct {
	mu sync.Mutex
	w  io.Writer
}

func (m *messages) send(kind byte, content []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	head := [messageHead]byte{0: kind}
	binary.BigEndian.PutUint32(head[1:], uint32(len(content)))
	_, err := m.w.Write(append(head[:], content...))
	return err
}

// as gives a writer that sends its bytes as messages of a kind.
func (m *messages) as(kind byte) io.Writer { return messageWriter{m, kind} }

type messageWriter struct {
	to   *messages
	kind byte
}

func (w messageWriter) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		part := b[n:min(len(b), n+messageMax)]
		err = w.to.send(w.kind, part)
		n += len(part)
	}
	return n, err
}

// receive reads one message.
func receive(r io.Reader) (kind byte, content []byte, err error) {
	var head [messageHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > messageMax {
		return 0, nil, fmt.Errorf("message of %d bytes is too long", n)
	}
	content = make([]byte, n)
	_, err = io.ReadFull(r, content)
	return head[0], content, err
}

// remoteServer runs commands for peers.
type remoteServer struct {
	listener net.Listener
	children *children
	home     account
	env      []string
	peers    []fleet.Peer
	deliver  func(fleet.Signal) int
	bad      sync.Once // logged once: a program of the job can make any number of bad connections
}

// listenRemote serves peers on the guest's own address.
func listenRemote(c *children, s fleet.Setup, home account, deliver func(fleet.Signal) int) (*remoteServer, error) {
	listener, err := net.Listen("tcp", netip.AddrPortFrom(s.Addr, remotePort).String())
	if err != nil {
		return nil, fmt.Errorf("listening for peers: %w", err)
	}
	r := &remoteServer{listener: listener, children: c, home: home, env: merge(ownEnv(home), mpiEnv(s)), peers: s.Peers, deliver: deliver}
	go r.accept()
	return r, nil
}

func (r *remoteServer) close() { r.listener.Close() }

func (r *remoteServer) accept() {
	for {
		conn, err := r.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(time.Second) // perhaps out of file descriptors, which passes
			continue
		}
		go func() {
			defer conn.Close()
			if err := r.run(conn.(*net.TCPConn)); err != nil {
				r.bad.Do(func() { say("remote start for %s: %v", conn.RemoteAddr(), err) })
			}
		}()
	}
}

// known reports whether an address is a guest of the job.
func (r *remoteServer) known(a net.Addr) bool {
	from, err := netip.ParseAddrPort(a.String())
	return err == nil && slices.ContainsFunc(r.peers, func(p fleet.Peer) bool { return p.Addr == from.Addr().Unmap() })
}

// run carries out one request of a peer.
func (r *remoteServer) run(conn *net.TCPConn) error {
	if !r.known(conn.RemoteAddr()) {
		return errors.New("is not a guest of this job")
	}
	conn.SetKeepAliveConfig(keepAlive)
	in := bufio.NewReaderSize(conn, 4<<10)
	req, err := readRequest(in)
	if err != nil {
		return err
	}
	out := &messages{w: conn}
	if req.Signal != nil {
		return out.send(sendExit, binary.BigEndian.AppendUint32(nil, uint32(r.deliver(*req.Signal))))
	}
	code, err := r.runCommand(req, in, out)
	if err != nil {
		out.send(sendStderr, []byte("pagurus: "+err.Error()+"\n"))
	}
	return out.send(sendExit, binary.BigEndian.AppendUint32(nil, uint32(code)))
}

func readRequest(in *bufio.Reader) (req remoteRequest, err error) {
	var line []byte
	for {
		part, more, err := in.ReadLine()
		if err != nil {
			return req, fmt.Errorf("reading the request: %w", err)
		}
		line = append(line, part...)
		if len(line) > 1<<20 {
			return req, errors.New("request is too long")
		}
		if !more {
			break
		}
	}
	if err := json.Unmarshal(line, &req); err != nil {
		return req, fmt.Errorf("reading the request: %w", err)
	}
	return req, nil
}

// runCommand runs the command to its end. If the caller goes away before, the command is
// ended.
func (r *remoteServer) runCommand(req remoteRequest, in io.Reader, out *messages) (code int, err error) {
	p, err := launchPiped(r.children, command{
		path: "/bin/sh", args: []string{"sh", "-c", req.Command},
		env: merge(r.env, req.Env), dir: r.home.workable(), user: r.home.user,
	})
	if err != nil {
		return exitOurs, err
	}
	go func() {
		defer p.stdin.Close()
		err := takeStdin(in, p.stdin)
		// The connection broke, which a move does not cause: the caller ended.
		select {
		case <-p.ended: // and so did the command
			return
		default:
			say("remote start: the caller has gone (%v), so its command is ended: %s", err, fleet.OneLine(req.Command, mostCommand))
		}
		r.children.signal(p.pid, unix.SIGHUP)
		r.children.signal(p.pid, unix.SIGTERM)
		select {
		case <-p.ended:
		case <-time.After(remoteGrace):
			r.children.signal(p.pid, unix.SIGKILL)
		}
	}()
	var outputs sync.WaitGroup
	outputs.Go(func() { copyAll(out.as(sendStdout), p.stdout, p.ended) })
	outputs.Go(func() { copyAll(out.as(sendStderr), p.stderr, p.ended) })
	<-p.ended
	outputs.Wait()
	return p.exit.Code, nil
}

// takeStdin feeds a command until the connection ends, which may be after the end of input. It returns how it ended.
func takeStdin(in io.Reader, stdin *os.File) error {
	for {
		kind, content, err := receive(in)
		switch {
		case err != nil:
			return err
		case kind == sendStdin && len(content) == 0:
			stdin.Close()
		case kind == sendStdin:
			stdin.Write(content) // a command that does not read loses it, as with any pipe
		}
	}
}

// remoteShell is the command "rsh [options] HOST COMMAND...". It returns the command's exit
// code, or 255 like ssh on failure.
func remoteShell(args []string) int {
	host, command, quiet, err := parseRemote(args)
	if err == nil {
		var code int
		if code, err = callPeer(host, command, quiet); err == nil {
			return code
		}
	}
	fmt.Fprintln(os.Stderr, "pagurus rsh:", err)
	return 255
}

// parseRemote parses the options that launchers pass to rsh and ssh; only -n has a meaning
// here.
func parseRemote(args []string) (host, command string, quiet bool, err error) {
	for len(args) > 0 && strings.HasPrefix(args[0], "-") && args[0] != "-" {
		option := args[0]
		args = args[1:]
		if option == "--" {
			break
		}
		quiet = quiet || option == "-n"
		if len(option) == 2 && strings.Contains("bcDEeFIiJLlmOopQRSWw", option[1:]) && len(args) > 0 {
			args = args[1:]
		}
	}
	if len(args) < 2 {
		return "", "", false, errors.New("usage: rsh [options] HOST COMMAND")
	}
	host = args[0]
	if _, after, ok := strings.Cut(host, "@"); ok {
		host = after
	}
	return host, strings.Join(args[1:], " "), quiet, nil
}

// callPeer has a peer run a command and returns its exit code.
func callPeer(host, command string, quiet bool) (int, error) {
	conn, err := dialPeer(host)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	streams := terminal{in: os.Stdin, out: os.Stdout, err: os.Stderr}
	if quiet {
		streams.in = strings.NewReader("")
	}
	code, err := converse(conn, remoteRequest{Command: command, Env: carriedEnv()}, streams)
	if err != nil {
		return 0, fmt.Errorf("running a command on %s: %w", host, err)
	}
	return code, nil
}

// terminal is the local end of a remote command's streams.
type terminal struct {
	in       io.Reader
	out, err io.Writer
}

// converse makes a request and carries its streams until the command ends.
func converse(conn io.ReadWriter, r remoteRequest, streams terminal) (code int, err error) {
	line, err := json.Marshal(r)
	if err != nil {
		return 0, err
	}
	if _, err := conn.Write(append(line, '\n')); err != nil {
		return 0, err
	}
	to := &messages{w: conn}
	go func() {
		io.Copy(to.as(sendStdin), streams.in)
		to.send(sendStdin, nil)
	}()
	in := bufio.NewReader(conn)
	for {
		kind, content, err := receive(in)
		if err != nil {
			return 0, fmt.Errorf("connection ended before the command did: %w", err)
		}
		switch kind {
		case sendStdout:
			streams.out.Write(content) // a closed reader loses the output, as with any pipe
		case sendStderr:
			streams.err.Write(content)
		case sendExit:
			if len(content) == 4 {
				return int(binary.BigEndian.Uint32(content)), nil
			}
		}
	}
}

// carriedEnv is the part of the environment that goes along.
func carriedEnv() (env []string) {
	for _, name := range append(strings.Fields(os.Getenv(carried)), carried) {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// dialPeer connects to a guest of the job, which may still be starting.
func dialPeer(host string) (*net.TCPConn, error) {
	addr, err := peerAddr(host)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(remoteWait); ; time.Sleep(100 * time.Millisecond) {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(addr, remotePort).String(), time.Until(deadline))
		if err == nil {
			tcp := conn.(*net.TCPConn)
			tcp.SetKeepAliveConfig(keepAlive)
			return tcp, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("guest %s does not answer: %w", host, err)
		}
	}
}

// peerAddr finds a guest by name, or by address.
func peerAddr(host string) (netip.Addr, error) {
	b, err := os.ReadFile(peersPath)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("reading the list of guests: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		name, addr, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == host || addr == host {
			return netip.ParseAddr(addr)
		}
	}
	return netip.Addr{}, fmt.Errorf("%s is not a guest of this job", host)
}
