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

// settled returns an error while a socket holds something that cannot be moved, or that CRIU
// would silently lose. In a running program's socket it examines only what can be examined
// without changing the socket.
func (s socket) settled(all []socket, runs bool) error {
	emptied.forget(s)
	if s.ready&unix.POLLERR != 0 {
		return s.waits("a socket with an error that it has not read")
	}
	switch {
	case (halfClosed[s.state] || s.tcp() && s.state == tcpClosed) && s.namedLate():
		return s.waits("a connection by IPv6 that is closed for writing at one end, or both")
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
		return nil // CRIU itself reports connections that it cannot move
	case s.kind.Family == unix.AF_NETLINK:
		return s.waits("a netlink socket with messages that it has not read")
	case s.inet() && !s.tcp():
		return s.waits("a raw socket with packets that it has not read")
	}
	return nil
}

// socketsLast is how long an obstacle must last to be reported before a move is tried.
const socketsLast = 100 * time.Millisecond

// LastingSockets returns, for people, which sockets of a running container, given its first
// process, prevent a move now and a moment later. It omits what only a suspended container can
// show.
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
	all, _ := members(pid).sockets() // a socket that was closed meanwhile is no obstacle
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

// stream examines a TCP connection.
func (s socket) stream(runs bool) error {
	// A buffer that is too small returns the length, and the packet stays unread.
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

// namedLate reports whether a socket of IPv6 has got its address by connecting, or from a
// listener for all addresses: where a program names one, the kernel sets IPV6_V6ONLY.
// criu.NameLate has such a socket get it in the same way again, which CRIU's packets for a
// half-closed connection do not allow.
func (s socket) namedLate() bool {
	if s.kind.Family != unix.AF_INET6 || getInt(s.fd, IPv6Level, unix.IPV6_V6ONLY) != 0 {
		return false
	}
	here, _ := s.names()
	return here.Addr().Is6() && !here.Addr().IsUnspecified()
}

// peekOff returns the offset that was set, or -1 if none was.
func peekOff(fd int) int {
	if n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF); err == nil {
		return n
	}
	return -1
}

// urgent reports whether urgent data is waiting or expected. Readable data ends before it,
// unless the program receives urgent data in line: so the kernel is asked for both lengths.
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

// peekBytes is more than the size of any message.
const peekBytes = 1 << 20

// peek calls f with a buffer until f returns false. Each peek shows what follows the one before.
func (s socket) peek(f func([]byte) bool) error {
	before := peekOff(s.fd)
	if err := setInt(s.fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, 0); err != nil {
		return fmt.Errorf("check a socket for waiting data: %w", err)
	}
	for buffer := make([]byte, peekBytes); f(buffer); {
	}
	return setInt(s.fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, before)
}

// emptied lists the sockets in which an empty message was seen. A peek shows such a message only
// once, so it counts as present until the socket is empty.
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

// forget removes a socket that holds no messages any more.
func (e *empties) forget(s socket) {
	e.Lock()
	defer e.Unlock()
	if s.ready&unix.POLLIN == 0 {
		delete(e.in, s.name)
	}
}
