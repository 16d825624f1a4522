package kernelstate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"pagurus/act/container/criu"
	"pagurus/act/host"
	"pagurus/internal/thread"
)

// CRIU restores sockets with few of their options, without group memberships and without
// messages that wait in UDP sockets. The source reads these from the suspended processes'
// borrowed sockets, and the target gives them to the restored ones. A move waits for state that
// cannot be read or set.

// kind holds the arguments of socket(2).
type kind struct{ Family, Type, Protocol int }

// socket is a borrowed socket, with the first process found to have it.
type socket struct {
	fd      int
	owner   int // PID
	process int // its number in the container
	number  int // its descriptor there
	name    string
	kind    kind
	state   byte  // of TCP
	ready   int16 // poll(2)'s events
}

func (s socket) tcp() bool  { return s.inet() && s.kind.Protocol == unix.IPPROTO_TCP }
func (s socket) udp() bool  { return s.inet() && s.kind.Protocol == unix.IPPROTO_UDP }
func (s socket) inet() bool { return s.kind.Family == unix.AF_INET || s.kind.Family == unix.AF_INET6 }

// waits returns an error about something that must pass before the socket can be moved.
func (s socket) waits(what string) error {
	return fmt.Errorf("%s has %s: %w", criu.NameOf(s.owner), what, criu.ErrTransient)
}

// notedSockets is the recorded state of all sockets of a container.
type notedSockets struct {
	Kinds   []notedKind
	Sockets []notedSocket
}

// notedKind holds the options of a new socket of a kind.
type notedKind struct {
	Kind    kind
	Options map[string][]byte
}

// notedSocket is the recorded state of one socket.
type notedSocket struct {
	Process, FD int
	Kind        int               // index in Kinds
	Options     map[string][]byte // options that differ from a new socket's
	Window      []byte            `json:",omitempty"` // of a half-closed connection
	Messages    []message         `json:",omitempty"`
	Letters     []letter          `json:",omitempty"`
	Groups      []membership      `json:",omitempty"`
}

// Settled returns an error while a suspended container's sockets are a transient obstacle.
// NoteState does so too, but later. pid is the container's first process.
func Settled(pid int) error {
	all, err := members(pid).sockets()
	defer closeSockets(all)
	for i := 0; err == nil && i < len(all); i++ {
		err = all[i].settled(all, false)
	}
	return err
}

// members returns a container's processes with their PIDs on this host only.
func members(pid int) *Container {
	c := &Container{}
	for _, pid := range host.Family(pid) {
		c.Processes = append(c.Processes, Process{PID: pid})
	}
	return c
}

func noteSockets(c *Container) (any, error) {
	all, err := c.sockets()
	defer closeSockets(all)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	for _, s := range all {
		if err := s.settled(all, false); err != nil {
			return nil, err
		}
	}
	n := &notedSockets{}
	err = inNetworkOf(c.Processes[0].PID, func() error { return n.read(c, all) })
	return n, err
}

// read records all sockets. It must be called in the container's network.
func (n *notedSockets) read(c *Container, all []socket) error {
	groups, err := groupsOf(c.Processes[0].PID)
	if err != nil {
		return err
	}
	places, buffer := map[kind]int{}, make([]byte, usualBytes)
	for _, s := range all {
		place, ok := places[s.kind]
		if !ok {
			place = len(n.Kinds)
			options, err := newSocket(s.kind)
			if err != nil {
				return err
			}
			places[s.kind], n.Kinds = place, append(n.Kinds, notedKind{s.kind, options})
		}
		noted := notedSocket{Process: s.process, FD: s.number, Kind: place, Options: map[string][]byte{}}
		usual := n.Kinds[place].Options
		for _, o := range optionsOf(s.kind) {
			if value, ok := s.get(o, buffer); ok && !bytes.Equal(value, usual[o.key]) {
				noted.Options[o.key] = bytes.Clone(value)
			}
		}
		if noted.Window, err = s.window(); err == nil && s.udp() && s.ready&unix.POLLIN != 0 {
			noted.Messages, err = s.messages(all)
		}
		if err == nil && s.kind.Family == unix.AF_UNIX && s.kind.Type == unix.SOCK_DGRAM && s.ready&unix.POLLIN != 0 {
			noted.Letters, err = s.letters(all, false)
		}
		if err != nil {
			return err
		}
		noted.Groups = s.memberships(groups)
		n.Sockets = append(n.Sockets, noted)
	}
	return nil
}

// newSocket returns the options of a new socket.
func newSocket(k kind) (map[string][]byte, error) {
	fd, err := unix.Socket(k.Family, k.Type|unix.SOCK_CLOEXEC, k.Protocol)
	if err != nil {
		return nil, fmt.Errorf("make a socket like the container's: %w", err)
	}
	defer unix.Close(fd)
	s, options := socket{fd: fd, kind: k, state: tcpClosed}, map[string][]byte{}
	for _, o := range optionsOf(k) {
		if value, ok := s.get(o, make([]byte, usualBytes)); ok {
			options[o.key] = value
		}
	}
	return options, nil
}

// readSockets reads what another host has recorded, and refuses what cannot be applied.
func readSockets(text []byte) (n notedSockets, err error) {
	if err := json.Unmarshal(text, &n); err != nil {
		return n, err
	}
	for _, s := range n.Sockets {
		if s.Kind < 0 || s.Kind >= len(n.Kinds) {
			return n, fmt.Errorf("descriptor %d of process %d in the container is of kind %d of %d", s.FD, s.Process, s.Kind, len(n.Kinds))
		}
		k := n.Kinds[s.Kind]
		for _, o := range optionsOf(k.Kind) {
			for _, values := range []map[string][]byte{s.Options, k.Options} {
				if value, has := values[o.key]; has && o.Way == Half && len(value) != 4 {
					return n, fmt.Errorf("%s of descriptor %d of process %d in the container has %d bytes", o.Name, s.FD, s.Process, len(value))
				}
			}
		}
		for _, m := range s.Messages {
			if !m.From.IsValid() || !m.To.IsValid() || m.From.Addr().Is4() != m.To.Addr().Is4() || len(m.Data) > mostDatagram {
				return n, fmt.Errorf("a message of %d bytes from %s to %s of descriptor %d of process %d in the container is none", len(m.Data), m.From, m.To, s.FD, s.Process)
			}
		}
	}
	return n, nil
}

func restoreSockets(c *Container, text []byte) error {
	n, err := readSockets(text)
	if err != nil {
		return err
	}
	if len(c.Processes) == 0 {
		return errors.New("its processes have ended")
	}
	return inNetworkOf(c.Processes[0].PID, func() error {
		for _, s := range n.Sockets {
			if err := s.restore(c, n.Kinds[s.Kind]); err != nil {
				return err
			}
		}
		return nil
	})
}

// inNetworkOf calls a function in a process's network namespace.
func inNetworkOf(pid int, f func() error) error {
	network, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return err
	}
	defer network.Close()
	return thread.In(network, f)
}

// restore applies the recorded state to a restored socket. Options come last, because they could
// keep messages out. It must be called in the container's network.
func (n notedSocket) restore(c *Container, k notedKind) error {
	p, ok := c.Process(n.Process)
	if !ok {
		return fmt.Errorf("process %d in the container is not there", n.Process)
	}
	fd, err := p.Borrow(n.FD)
	if err != nil {
		return err
	}
	s := socket{fd: fd, owner: p.PID, process: n.Process, number: n.FD, kind: k.Kind}
	defer unix.Close(fd)
	s.readTCP()
	if err := errors.Join(s.giveWindow(n.Window), s.measure()); err != nil {
		return err
	}
	for _, g := range n.Groups {
		if err := s.join(g); err != nil {
			return err
		}
	}
	if len(n.Messages) > 0 {
		if err := s.queue(n.Messages, c.deliver); err != nil {
			return err
		}
	}
	if err := s.write(n.Letters, c); err != nil {
		return err
	}
	return n.setOptions(s, k.Options)
}

// setOptions sets the socket's recorded options, and those of a new socket that are otherwise on
// this host.
func (n notedSocket) setOptions(s socket, usual map[string][]byte) error {
	buffer := make([]byte, usualBytes)
	for _, o := range optionsOf(s.kind) {
		wanted, own := n.Options[o.key]
		if !own {
			wanted = usual[o.key]
		}
		value, has := s.get(o, buffer)
		var err error
		switch {
		case own && !has && s.lacks(o):
			err = errors.New("this host's kernel does not know it: move the guest to a host with a newer one")
		case has && wanted != nil && !bytes.Equal(value, wanted):
			err = s.set(o, wanted)
		}
		if err != nil {
			return fmt.Errorf("set %s of descriptor %d of process %d in the container: %w", o.Name, n.FD, n.Process, err)
		}
	}
	return nil
}

// sockets borrows all sockets of the container's processes, each once.
func (c *Container) sockets() (all []socket, err error) {
	seen := map[string]bool{}
	for _, p := range c.Processes {
		files, err := p.Files()
		if err != nil {
			return all, err
		}
		for _, f := range files {
			if !strings.HasPrefix(f.Name, "socket:") || seen[f.Name] {
				continue
			}
			seen[f.Name] = true
			fd, err := p.Borrow(f.FD)
			if err != nil {
				return all, err
			}
			s := socket{fd: fd, owner: p.PID, process: p.Inside, number: f.FD, name: f.Name}
			all = append(all, s)
			if err := all[len(all)-1].identify(); err != nil {
				return all, fmt.Errorf("check descriptor %d of process %d in the container: %w", f.FD, p.Inside, err)
			}
		}
	}
	return all, poll(all)
}

func (s *socket) identify() error {
	for option, to := range map[int]*int{unix.SO_DOMAIN: &s.kind.Family, unix.SO_TYPE: &s.kind.Type, unix.SO_PROTOCOL: &s.kind.Protocol} {
		n, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, option)
		if err != nil {
			return err
		}
		*to = n
	}
	s.readTCP()
	return nil
}

// States of TCP connections.
const (
	tcpClosed    = 7
	tcpListening = 10
)

// readTCP reads the state of a TCP connection, the first field of TCP_INFO.
func (s *socket) readTCP() {
	if !s.tcp() {
		return
	}
	var info [8]byte
	if n, err := getsockopt(s.fd, TCPLevel, unix.TCP_INFO, info[:]); err == nil && n > 0 {
		s.state = info[0]
	}
}

// poll finds for all sockets whether there is data to read or an error.
func poll(all []socket) error {
	asked := make([]unix.PollFd, len(all))
	for i, s := range all {
		asked[i] = unix.PollFd{Fd: int32(s.fd), Events: unix.POLLIN | unix.POLLPRI}
	}
	if len(all) == 0 {
		return nil
	}
	if _, err := unix.Poll(asked, 0); err != nil {
		return fmt.Errorf("ask which data waits in the container's sockets: %w", err)
	}
	for i := range all {
		all[i].ready = asked[i].Revents
	}
	return nil
}

func closeSockets(all []socket) {
	for _, s := range all {
		unix.Close(s.fd)
	}
}
