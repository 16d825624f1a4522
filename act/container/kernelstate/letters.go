package kernelstate

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// CRIU moves the bytes that wait in Unix sockets, but sends them again from a socket without a
// name. If senders have names, the target takes out CRIU's messages, and sends each one again
// from its original socket. A message shows the name that its sender has when the message is
// read.

// letter is a message of a queue whose senders have names.
type letter struct {
	To      string // the receiver's name, written as in From
	Data    []byte
	From    string `json:",omitempty"` // "@" begins a name without a file
	Process int    `json:",omitempty"` // that has the sending socket, by its number in the container
	FD      int    `json:",omitempty"`

	files bool // it carries open files
}

// nameOf returns the name to which others can send, or "".
func (s socket) nameOf() string {
	a, err := unix.Getsockname(s.fd)
	if u, ok := a.(*unix.SockaddrUnix); ok && err == nil {
		return u.Name
	}
	return ""
}

// letters examines the messages that wait in a Unix socket, and returns those that CRIU would
// not restore correctly. If the program runs, only the first message is examined.
func (s socket) letters(all []socket, runs bool) (found []letter, err error) {
	if runs {
		return nil, s.front(all)
	}
	if emptied.had(s) {
		return nil, s.waits("an empty message that it has not read on a Unix socket")
	}
	var odd error
	stream, named, files := s.kind.Type == unix.SOCK_STREAM, false, false
	err = s.peek(func(buffer []byte) bool {
		l, wrong, err := s.letter(buffer, all)
		switch {
		case err != nil, stream && len(l.Data) == 0:
			return false
		case wrong != nil:
			odd = wrong
		case len(l.Data) == 0:
			emptied.add(s)
			odd = s.waits("an empty message that it has not read on a Unix socket")
		case s.kind.Type == unix.SOCK_DGRAM:
			if named, files = named || l.From != "", files || l.files; named && files {
				odd = s.waits("open files, and messages from sockets with an address, that it has not read on a Unix socket")
			}
			l.Data = append([]byte{}, l.Data...)
			found = append(found, l)
		}
		return odd == nil
	})
	if err = errors.Join(odd, err); err != nil || !named {
		return nil, err
	}
	return found, nil
}

// letter peeks at one message. odd says which part of it cannot be moved.
func (s socket) letter(buffer []byte, all []socket) (l letter, odd, err error) {
	control := make([]byte, controlBytes)
	n, controls, flags, from, err := unix.Recvmsg(s.fd, buffer, control, unix.MSG_PEEK|unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return l, nil, err
	}
	l = letter{Data: buffer[:n]}
	if controls > 0 || flags&unix.MSG_CTRUNC != 0 {
		l.files = true
		if !onlyFiles(control[:controls], all) || flags&unix.MSG_CTRUNC != 0 {
			return l, s.waits("a control message (credentials, or a socket that no program has open) that it has not read on a Unix socket"), nil
		}
	}
	if s.kind.Type != unix.SOCK_DGRAM {
		return l, nil, nil
	}
	l.To = s.nameOf()
	if a, ok := from.(*unix.SockaddrUnix); ok && a.Name != "" {
		l.From = a.Name
		if !l.find(all) {
			odd = s.waits("a message that it has not read on a Unix socket, from a socket with an address that cannot send it again")
		}
	}
	return l, odd, nil
}

// controlBytes is more than the control messages of one message need: at most 253 files.
const controlBytes = 4096

// onlyFiles reports whether control messages contain only files, which CRIU can move, and no
// socket that is unknown and whose options would be lost. It closes the files.
func onlyFiles(control []byte, all []socket) bool {
	messages, err := unix.ParseSocketControlMessage(control)
	only := err == nil
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			only = false // not files
			continue
		}
		for _, fd := range fds {
			name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
			unix.Close(fd)
			unknown := strings.HasPrefix(name, "socket:") && !slices.ContainsFunc(all, func(s socket) bool { return s.name == name })
			only = only && err == nil && !unknown
		}
	}
	return only
}

// find finds the sending socket by its name.
func (l *letter) find(all []socket) bool {
	if l.To == "" || l.To[0] != '@' && !path.IsAbs(l.To) {
		return false
	}
	for _, s := range all {
		if s.kind.Family == unix.AF_UNIX && s.kind.Type == unix.SOCK_DGRAM && s.nameOf() == l.From {
			l.Process, l.FD = s.process, s.number
			return true
		}
	}
	return false
}

// front examines only the first message in a running program's socket, and no empty message,
// because the kernel would not show that again.
func (s socket) front(all []socket) error {
	if n, err := unix.IoctlGetInt(s.fd, unix.SIOCINQ); err != nil || n == 0 || s.kind.Type == unix.SOCK_SEQPACKET || peekOff(s.fd) >= 0 {
		return nil
	}
	var one [1]byte
	_, odd, _ := s.letter(one[:], all)
	return odd
}

// write replaces the messages that CRIU put into a restored socket.
func (s socket) write(all []letter, c *Container) error {
	if len(all) == 0 {
		return nil
	}
	for buffer := make([]byte, 1); ; {
		if _, _, err := unix.Recvfrom(s.fd, buffer, unix.MSG_DONTWAIT); errors.Is(err, unix.EAGAIN) {
			break
		} else if err != nil {
			return fmt.Errorf("take the messages that wait in a Unix socket: %w", err)
		}
	}
	to, done, err := s.address(all[0].To)
	if err != nil {
		return err
	}
	defer done()
	for i, l := range all {
		if err := l.send(to, c); err != nil {
			return fmt.Errorf("send message %d of %d to the Unix socket %q again: %w", i+1, len(all), l.To, err)
		}
	}
	return nil
}

func (l letter) send(to unix.Sockaddr, c *Container) (err error) {
	fd := -1
	if l.From == "" {
		fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	} else if p, ok := c.Process(l.Process); ok {
		fd, err = p.Borrow(l.FD)
	} else {
		err = fmt.Errorf("process %d in the container is not there", l.Process)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, l.Data, unix.MSG_DONTWAIT, to)
}

// address returns an address by which this process reaches a socket of the container. A name
// that is a path is resolved below the container's root. It has to be a socket, and no link: the program could have put
// one to a socket of the host there, to which this process, which is root, would write in its name.
func (s socket) address(name string) (to unix.Sockaddr, done func(), err error) {
	if name == "" {
		return nil, nil, errors.New("the socket has no name")
	}
	if name[0] == '@' {
		return &unix.SockaddrUnix{Name: name}, func() {}, nil
	}
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", s.owner), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open the container's root: %w", err)
	}
	defer unix.Close(root)
	file, err := unix.Openat2(root, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return nil, nil, fmt.Errorf("open the socket %q: %w", name, err)
	}
	var st unix.Stat_t
	if err = unix.Fstat(file, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		err = errors.New("it is no socket")
	}
	if err != nil {
		unix.Close(file)
		return nil, nil, fmt.Errorf("open the socket %q: %w", name, err)
	}
	return &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d", file)}, func() { unix.Close(file) }, nil
}
