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

// CRIU takes nothing along of what waits in a UDP socket. Each message is read at the
// source without being taken, with the addresses in its header, and sent to the restored
// socket as the same packet: through the container's own loopback link if it came from
// the container, otherwise by its link to the network.

// message is one that waits to be read.
type message struct {
	From, To  netip.AddrPort
	Hops, TOS int
	Data      []byte
}

// told are the options by which the kernel says, with a message, what stood in its header.
var told = map[bool][][2]int{ // of IPv6
	false: {{IPLevel, unix.IP_RECVORIGDSTADDR}, {IPLevel, unix.IP_RECVTTL}, {IPLevel, unix.IP_RECVTOS}},
	true:  {{IPv6Level, unix.IPV6_RECVORIGDSTADDR}, {IPv6Level, unix.IPV6_RECVHOPLIMIT}, {IPv6Level, unix.IPV6_RECVTCLASS}},
}

// messages are all that wait in a UDP socket. Which of all sockets gets one again has to be
// without a doubt. It is called in the container's network.
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
			return nil, fmt.Errorf("look at what waits in a UDP socket: %w", err)
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

// read takes what the kernel says of a message's header. merged: it is several that came
// as one.
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

// addrPort reads a struct sockaddr_in or sockaddr_in6, whose address is at a place.
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

// ownAddresses are those of the network this is called in.
func ownAddresses() (own map[netip.Addr]bool, err error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("look at the container's addresses: %w", err)
	}
	own = map[netip.Addr]bool{}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own[p.Addr().Unmap()] = true
		}
	}
	return own, nil
}

// isOwn says whether a packet from an address comes from the container itself.
func isOwn(a netip.Addr, own map[netip.Addr]bool) bool { return a.IsLoopback() || own[a] }

// surely says that the kernel gives the message, when it comes again, to this socket alone.
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
		case peer.IsValid() && !whose.IsValid(): // the one with the peer gets it
		default:
			return false
		}
	}
	return true
}

// names are a socket's own address and its peer's.
func (s socket) names() (here, peer netip.AddrPort) {
	a, _ := unix.Getsockname(s.fd)
	b, err := unix.Getpeername(s.fd)
	if err == nil {
		peer = addressOf(b)
	}
	return addressOf(a), peer
}

// roomBytes is more than all that waited takes.
const roomBytes = 1 << 28

// queue has messages wait again in a restored socket, one by one. deliver brings a packet
// from the container's network. What the socket's buffer and filter are is set afterwards.
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
			return fmt.Errorf("give message %d of %d to descriptor %d of process %d again: %w", i+1, len(all), s.number, s.process, err)
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

// held is how much memory the kernel holds for what waits in the socket, the first thing
// that SO_MEMINFO says.
func (s socket) held() uint32 {
	var info [64]byte
	if n, err := getsockopt(s.fd, unix.SOL_SOCKET, unix.SO_MEMINFO, info[:]); err != nil || n < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(info[:])
}

// deliveryLimit is how long a packet may take that mostly is there at once.
const deliveryLimit = time.Second

// grown returns when more waits than before.
func (s socket) grown(before uint32) error {
	for end := time.Now().Add(deliveryLimit); s.held() <= before; time.Sleep(20 * time.Microsecond) {
		if time.Now().After(end) {
			return errors.New("it does not arrive")
		}
	}
	return nil
}

// detach takes the filter from a socket, which passed what waits there or came later.
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
