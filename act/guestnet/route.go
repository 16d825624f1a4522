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

// leastTimeout is TCP's minimum retransmission timeout between guests, in ms: packets on
// one switched network take less, and lost ones wait for it. Linux's default is 200 ms
// (RFC 6298 wants a second, for the Internet). It also limits how long an acknowledgement
// is delayed.
const leastTimeout = 20

// shortenTimeout sets leastTimeout: for all connections if the kernel has a setting (Linux
// 6.11), otherwise for the route to the job's network. If it fails, the guest is only slower
// when frames are lost.
func shortenTimeout(name string, addr netip.Addr, prefix int) error {
	err := os.WriteFile("/proc/sys/net/ipv4/tcp_rto_min_us", fmt.Append(nil, leastTimeout*1000), 0)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return shortenRouteTimeout(name, addr, prefix)
}

// shortenRouteTimeout replaces the route of an interface's address by one with
// leastTimeout (rtnetlink(7), ip-route(8) on rto_min).
func shortenRouteTimeout(name string, addr netip.Addr, prefix int) error {
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
	// TCP uses the timeout only if it is locked.
	metrics := attribute(nil, unix.RTAX_LOCK, word(1<<unix.RTAX_RTO_MIN))
	body = attribute(body, unix.RTA_METRICS, attribute(metrics, unix.RTAX_RTO_MIN, word(leastTimeout)))
	if err := sendNetlink(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, body); err != nil {
		return fmt.Errorf("giving the route to %s a time-out: %w", network, err)
	}
	return nil
}

// leadOut makes the default route, by an interface to a gateway.
func leadOut(name string, gateway netip.Addr) error {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	if !gateway.Is4() {
		return fmt.Errorf("the gateway %s has no IPv4 address", gateway)
	}
	body := []byte{unix.AF_INET, 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST, 0, 0, 0, 0}
	body = attribute(body, unix.RTA_GATEWAY, gateway.AsSlice())
	body = attribute(body, unix.RTA_OIF, word(uint32(link.Index)))
	if err := sendNetlink(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, body); err != nil {
		return fmt.Errorf("making the route to the Internet: %w", err)
	}
	return nil
}

// word encodes a number in the machine's byte order.
func word(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// attribute appends a netlink attribute, whose value is four bytes or nested attributes.
func attribute(to []byte, kind uint16, value []byte) []byte {
	to = binary.NativeEndian.AppendUint16(to, uint16(unix.SizeofRtAttr+len(value)))
	return append(binary.NativeEndian.AppendUint16(to, kind), value...)
}

// sendNetlink sends one rtnetlink message and waits for the result.
func sendNetlink(kind, flags uint16, body []byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	message := word(uint32(unix.SizeofNlMsghdr + len(body)))
	message = binary.NativeEndian.AppendUint16(message, kind)
	message = binary.NativeEndian.AppendUint16(message, flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	message = append(message, make([]byte, 8)...) // sequence number and sender, unused: one message on one socket
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
