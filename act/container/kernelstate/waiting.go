package kernelstate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/container/criu"
)

// settled gives an error while there is something in a socket that cannot be taken along,
// or that CRIU would lose without a word. Of one that a running program has, only what can
// be seen without a change to it.
func (s socket) settled(all []socket, runs bool) error {
	emptied.forget(s)
	if s.ready&unix.POLLERR != 0 {
		return s.waits("a socket with an error that it has not heard of")
	}
	switch {
	case s.tcp() && s.state != tcpListening:
		return s.stream(runs)
	case s.udp() && getInt(s.fd, UDPLevel, unix.UDP_CORK) != 0:
		return s.waits("begun a message on a UDP socket and not sent it (UDP_CORK)")
	case s.ready&unix.POLLIN == 0 || s.udp():
		return nil
	case s.kind.Family == unix.AF_UNIX:
		if getInt(s.fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN) == 0 {
			_, err := s.letters(all, runs)
			return err
		}
		return nil // CRIU says what it cannot take along
	case s.kind.Family == unix.AF_NETLINK:
		return s.waits("a netlink socket with messages that it has not read")
	case s.inet() && !s.tcp():
		return s.waits("a raw socket with packets that it has not read")
	}
	return nil
}

// socketsLast is how long something has to be there to be told of before a move is tried.
const socketsLast = 100 * time.Millisecond

// LastingSockets says, for people, what of the sockets of a running container with this first
// process keeps it from being moved, now and a moment later. What only the suspended
// container can be asked is missing.
func LastingSockets(ctx context.Context, pid int) []string {
	found := unsettled(pid)
	if len(found) == 0 {
		return nil
	}
	select {
	case <-ctx.Done():
	case <-time.After(socketsLast):
	}
	again := unsettled(pid)
	return slices.DeleteFunc(found, func(says string) bool { return !slices.Contains(again, says) })
}

func unsettled(pid int) (found []string) {
	all, _ := members(pid).sockets() // one that is closed meanwhile is no obstacle
	defer closeSockets(all)
	for _, s := range all {
		if err := s.settled(all, true); err != nil {
			says, passes := strings.CutSuffix(err.Error(), ": "+criu.ErrTransient.Error())
			if passes {
				says += ": let it read or finish that, or close the socket"
			}
			found = append(found, says)
		}
	}
	return found
}

// stream looks at a TCP connection.
func (s socket) stream(runs bool) error {
	// The lengths that do not fit are told, and the packet stays for the program to read.
	if n, err := getsockopt(s.fd, TCPLevel, unix.TCP_SAVED_SYN, nil); errors.Is(err, unix.EINVAL) && n > 0 {
		return s.waits("a TCP connection whose first packet was saved and is not read (TCP_SAVED_SYN)")
	}
	name := make([]byte, 16)
	if n, err := getsockopt(s.fd, TCPLevel, unix.TCP_ULP, name); err == nil && n > 0 && name[0] != 0 {
		return fmt.Errorf("%s has a TCP connection that the kernel enciphers or handles otherwise (%s), which cannot move: the program has to do that itself", criu.NameOf(s.owner), unix.ByteSliceToString(name))
	}
	if s.ready&(unix.POLLIN|unix.POLLPRI) == 0 {
		return nil
	}
	urgent, err := s.ready&unix.POLLPRI != 0, error(nil)
	if !urgent && !runs {
		urgent, err = s.urgent()
	}
	if err != nil {
		return fmt.Errorf("look for urgent data: %w", err)
	}
	if urgent {
		return s.waits("urgent data on a TCP connection that it has not read (MSG_OOB)")
	}
	if n, err := unix.IoctlGetInt(s.fd, unix.SIOCINQ); err == nil && n > 0 && peekOff(s.fd) >= 0 {
		return s.waits("data that it has not read on a TCP connection at which it peeks from an offset (SO_PEEK_OFF)")
	}
	return nil
}

// peekOff is an offset that was set; -1: none.
func peekOff(fd int) int {
	if n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF); err == nil {
		return n
	}
	return -1
}

// urgent says whether there is urgent data to be read or to come. What is readable ends
// before it, unless the program has it among the rest: the kernel says both lengths.
func (s socket) urgent() (bool, error) {
	inline := getInt(s.fd, unix.SOL_SOCKET, unix.SO_OOBINLINE)
	defer func() { _ = setInt(s.fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, inline) }()
	var lengths [2]int
	for i := range lengths {
		if err := setInt(s.fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, i); err != nil {
			return false, err
		}
		if i == 0 {
			var one [1]byte
			if _, _, err := unix.Recvfrom(s.fd, one[:], unix.MSG_OOB|unix.MSG_PEEK|unix.MSG_DONTWAIT); err == nil || errors.Is(err, unix.EAGAIN) {
				return true, nil
			}
		}
		n, err := unix.IoctlGetInt(s.fd, unix.SIOCINQ)
		if err != nil {
			return false, err
		}
		lengths[i] = n
	}
	return lengths[0] != lengths[1], nil
}

// peekBytes is more than a message may have.
const peekBytes = 1 << 20

// peek calls a function with a buffer until that says that there is no more. Each peek at
// the socket sees what comes after the one before.
func (s socket) peek(f func([]byte) bool) error {
	before := peekOff(s.fd)
	if err := setInt(s.fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, 0); err != nil {
		return fmt.Errorf("look at what waits in a socket: %w", err)
	}
	for buffer := make([]byte, peekBytes); f(buffer); {
	}
	return setInt(s.fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, before)
}

// emptied are the sockets in which an empty message was seen. The kernel shows such a one
// but once to who peeks; so it may be there until nothing is.
var emptied = empties{in: map[string]bool{}}

type empties struct {
	sync.Mutex
	in map[string]bool // by the names of sockets
}

func (e *empties) add(s socket) {
	e.Lock()
	defer e.Unlock()
	e.in[s.name] = true
}

func (e *empties) had(s socket) bool {
	e.Lock()
	defer e.Unlock()
	return e.in[s.name]
}

// forget: nothing waits there any more.
func (e *empties) forget(s socket) {
	e.Lock()
	defer e.Unlock()
	if s.ready&unix.POLLIN == 0 {
		delete(e.in, s.name)
	}
}
