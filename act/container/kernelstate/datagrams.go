package kernelstate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// CRIU does not move messages that wait in UDP sockets. The source peeks at each message and its
// header's addresses. The target sends the same packet to the restored socket: through the
// container's loopback link if it came from the container, otherwise through its link to the
// network.

// message is a message that waits to be read.
type message struct {
	From, To  netip.AddrPort
	Hops, TOS int
	Data      []byte
}

// mostDatagram is more than a packet can carry.
const mostDatagram = 64 << 10

// told lists the options that make the kernel report a message's header.
var told = map[bool][][2]int{ // keyed by whether they are IPv6's
	false: {{IPLevel, unix.IP_RECVORIGDSTADDR}, {IPLevel, unix.IP_RECVTTL}, {IPLevel, unix.IP_RECVTOS}},
	true:  {{IPv6Level, unix.IPV6_RECVORIGDSTADDR}, {IPv6Level, unix.IPV6_RECVHOPLIMIT}, {IPv6Level, unix.IPV6_RECVTCLASS}},
}

// messages returns all messages that wait in a UDP socket. It must be certain which socket
// receives a repeated packet. It must be called in the container's network.
func (s socket) messages(all []socket) (found []message, err error) {
	if emptied.had(s) {
		return nil, s.waits("an empty message that it has not read on a UDP socket")
	}
	asked := told[false]
	if s.kind.Family == unix.AF_INET6 {
		asked = append(told[true], asked...)
	}
	for _, o := range asked {
		before := getInt(s.fd, o[0], o[1])
		if err := setInt(s.fd, o[0], o[1], 1); err != nil {
			return nil, fmt.Errorf("read the messages that wait in a UDP socket: %w", err)
		}
		defer func() { _ = setInt(s.fd, o[0], o[1], before) }()
	}
	own, err := ownAddresses()
	if err != nil {
		return nil, err
	}
	var odd error
	err = s.peek(func(buffer []byte) bool {
		control := make([]byte, 1024)
		n, controls, flags, from, err := unix.Recvmsg(s.fd, buffer, control, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if err != nil {
			return false
		}
		m := message{From: addressOf(from), Data: append([]byte{}, buffer[:n]...)}
		if n == 0 {
			emptied.add(s)
		}
		merged := m.read(control[:controls])
		if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || merged || !s.surely(m, own, all) {
			odd = s.waits("a message that it has not read on a UDP socket, and that could not be given to just this socket again")
			return false
		}
		found = append(found, m)
		return true
	})
	return found, errors.Join(odd, err)
}

// read parses what the kernel reports about a message's header. merged: several messages came as
// one.
func (m *message) read(control []byte) (merged bool) {
	all, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return true
	}
	for _, c := range all {
		number := func() int { return int(binary.NativeEndian.Uint32(append(c.Data, 0, 0, 0, 0))) }
		switch [2]int{int(c.Header.Level), int(c.Header.Type)} {
		case [2]int{IPLevel, unix.IP_ORIGDSTADDR}:
			m.To = addrPort(c.Data, 4, 8)
		case [2]int{IPv6Level, unix.IPV6_ORIGDSTADDR}:
			m.To = addrPort(c.Data, 8, 24)
		case [2]int{IPLevel, unix.IP_TTL}, [2]int{IPv6Level, unix.IPV6_HOPLIMIT}:
			m.Hops = number()
		case [2]int{IPLevel, unix.IP_TOS}:
			m.TOS = int(c.Data[0])
		case [2]int{IPv6Level, unix.IPV6_TCLASS}:
			m.TOS = number()
		case [2]int{UDPLevel, unix.UDP_GRO}:
			merged = number() < len(m.Data)
		}
	}
	return merged
}

// addrPort reads a struct sockaddr_in or sockaddr_in6 with the address at data[from:to].
func addrPort(data []byte, from, to int) netip.AddrPort {
	if len(data) < to {
		return netip.AddrPort{}
	}
	a, _ := netip.AddrFromSlice(data[from:to])
	return netip.AddrPortFrom(a.Unmap(), binary.BigEndian.Uint16(data[2:]))
}

func addressOf(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// ownAddresses returns the addresses of the current network namespace.
func ownAddresses() (own map[netip.Addr]bool, err error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("read the container's addresses: %w", err)
	}
	own = map[netip.Addr]bool{}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own[p.Addr().Unmap()] = true
		}
	}
	return own, nil
}

// isOwn reports whether a packet from an address comes from the container itself.
func isOwn(a netip.Addr, own map[netip.Addr]bool) bool { return a.IsLoopback() || own[a] }

// surely reports whether the kernel would give the repeated message to this socket alone.
func (s socket) surely(m message, own map[netip.Addr]bool, all []socket) bool {
	if !m.From.IsValid() || m.From.Port() == 0 || !isOwn(m.To.Addr(), own) || m.From.Addr().Is6() && !isOwn(m.From.Addr(), own) {
		return false
	}
	here, peer := s.names()
	if here.Port() != m.To.Port() || !here.Addr().IsUnspecified() && here.Addr() != m.To.Addr() || peer.IsValid() && peer != m.From {
		return false
	}
	for _, other := range all {
		if !other.udp() || other.name == s.name {
			continue
		}
		its, whose := other.names()
		switch {
		case other.kind.Family == unix.AF_INET && m.To.Addr().Is6():
		case m.To.Addr().Is4() && getInt(other.fd, IPv6Level, unix.IPV6_V6ONLY) != 0:
		case its.Port() != here.Port(), whose.IsValid() && whose != m.From:
		case !its.Addr().IsUnspecified() && its.Addr() != m.To.Addr():
		case peer.IsValid() && !whose.IsValid(): // the socket with the peer receives it
		default:
			return false
		}
	}
	return true
}

// names returns a socket's own address and its peer's.
func (s socket) names() (here, peer netip.AddrPort) {
	a, _ := unix.Getsockname(s.fd)
	b, err := unix.Getpeername(s.fd)
	if err == nil {
		peer = addressOf(b)
	}
	return addressOf(a), peer
}

// roomBytes is more than all waiting messages need.
const roomBytes = 1 << 28

// queue puts messages into a restored socket, one by one. deliver delivers a packet as if it
// came from the container's network. The socket's buffer size and filter are set afterwards.
func (s socket) queue(all []message, deliver func([]byte) error) error {
	own, err := ownAddresses()
	if err != nil {
		return err
	}
	attach, err := s.detach()
	if err != nil {
		return err
	}
	if err := setInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, roomBytes); err != nil {
		return fmt.Errorf("make room in a socket: %w", err)
	}
	for i, m := range all {
		before := s.held()
		packet := m.packet()
		if isOwn(m.From.Addr(), own) {
			err = loop(m.To.Addr(), packet)
		} else {
			err = deliver(packet)
		}
		if err == nil {
			err = s.grown(before)
		}
		if err != nil {
			return fmt.Errorf("give message %d of %d to descriptor %d of process %d in the container again: %w", i+1, len(all), s.number, s.process, err)
		}
	}
	return attach()
}

// loop sends a packet to the container itself.
func loop(to netip.Addr, packet []byte) error {
	family, sockaddr := unix.AF_INET, unix.Sockaddr(nil)
	if to.Is4() {
		sockaddr = &unix.SockaddrInet4{Addr: to.As4()}
	} else {
		family, sockaddr = unix.AF_INET6, &unix.SockaddrInet6{Addr: to.As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, packet, 0, sockaddr)
}

// held returns how much memory the messages in the socket use: the first field of SO_MEMINFO.
func (s socket) held() uint32 {
	var info [64]byte
	if n, err := getsockopt(s.fd, unix.SOL_SOCKET, unix.SO_MEMINFO, info[:]); err != nil || n < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(info[:])
}

// deliveryLimit is how long a packet may take to arrive. Most arrive at once.
const deliveryLimit = time.Second

// grown waits until the socket holds more than before.
func (s socket) grown(before uint32) error {
	for end := time.Now().Add(deliveryLimit); s.held() <= before; time.Sleep(20 * time.Microsecond) {
		if time.Now().After(end) {
			return errors.New("it does not arrive")
		}
	}
	return nil
}

// detach removes the socket's filter: the waiting messages passed it, or came before it was set.
// attach sets it again.
func (s socket) detach() (attach func() error, err error) {
	n, err := getsockopt(s.fd, unix.SOL_SOCKET, unix.SO_GET_FILTER, nil)
	if err != nil || n == 0 {
		return func() error { return nil }, nil
	}
	filter := make([]unix.SockFilter, n)
	if err := getFilter(s.fd, filter); err != nil {
		return nil, fmt.Errorf("read a socket's filter: %w", err)
	}
	if err := setInt(s.fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0); err != nil {
		return nil, fmt.Errorf("take a socket's filter away: %w", err)
	}
	return func() error {
		return unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(n), Filter: &filter[0]})
	}, nil
}
