package guestnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// leastTimeout is TCP's minimum retransmission time-out between guests, in ms: on
// one switched network nothing is under way for longer, and what is lost in spite
// of all waits for it. Linux's own is 200 ms (RFC 6298 wants a second, for the
// Internet). It also bounds how long an acknowledgement is held back.
const leastTimeout = 20

// hurry makes that so: for all connections where the kernel has a setting for it,
// which came with Linux 6.11, else for those by the route to the job's network. A
// guest that will not have it is slower only when frames are lost.
func hurry(name string, addr netip.Addr, prefix int) error {
	err := os.WriteFile("/proc/sys/net/ipv4/tcp_rto_min_us", fmt.Append(nil, leastTimeout*1000), 0)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return routeHurry(name, addr, prefix)
}

// routeHurry replaces the route that an interface's address made by the same with
// that time-out (rtnetlink(7), ip-route(8) on rto_min).
func routeHurry(name string, addr netip.Addr, prefix int) error {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	network, err := addr.Prefix(prefix)
	if err != nil || !addr.Is4() {
		return fmt.Errorf("%s/%d is not an IPv4 network", addr, prefix)
	}
	body := []byte{unix.AF_INET, byte(prefix), 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_KERNEL, unix.RT_SCOPE_LINK, unix.RTN_UNICAST, 0, 0, 0, 0}
	body = attribute(body, unix.RTA_DST, network.Addr().AsSlice())
	body = attribute(body, unix.RTA_OIF, word(uint32(link.Index)))
	body = attribute(body, unix.RTA_PREFSRC, addr.AsSlice())
	// TCP heeds only a locked one.
	metrics := attribute(nil, unix.RTAX_LOCK, word(1<<unix.RTAX_RTO_MIN))
	body = attribute(body, unix.RTA_METRICS, attribute(metrics, unix.RTAX_RTO_MIN, word(leastTimeout)))
	if err := tell(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, body); err != nil {
		return fmt.Errorf("giving the route to %s a time-out: %w", network, err)
	}
	return nil
}

func word(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// attribute appends one of netlink's, whose values here are all of four bytes, or
// attributes themselves.
func attribute(to []byte, kind uint16, value []byte) []byte {
	to = binary.NativeEndian.AppendUint16(to, uint16(unix.SizeofRtAttr+len(value)))
	return append(binary.NativeEndian.AppendUint16(to, kind), value...)
}

// tell has the kernel do what one message of rtnetlink says.
func tell(kind, flags uint16, body []byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	message := word(uint32(unix.SizeofNlMsghdr + len(body)))
	message = binary.NativeEndian.AppendUint16(message, kind)
	message = binary.NativeEndian.AppendUint16(message, flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	message = append(message, make([]byte, 8)...) // number and sender: there is one message, and one socket
	if err := unix.Sendto(fd, append(message, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return errors.New("the kernel sent no valid answer")
	}
	if code := int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}
