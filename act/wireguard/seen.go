package wireguard

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// Seen is what the device knows of a peer.
type Seen struct {
	Endpoint       netip.AddrPort // where it is called; not valid: nowhere
	Agreed         time.Time      // when both last agreed on keys; zero: never
	Received, Sent int64          // bytes
}

// Seen is what the device knows of its peers, by public key.
func (d *Device) Seen() (map[string]Seen, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	has, err := d.tool.Device(d.name)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", d.name, err)
	}
	out := map[string]Seen{}
	for _, p := range has.Peers {
		s := Seen{Agreed: p.LastHandshakeTime, Received: p.ReceiveBytes, Sent: p.TransmitBytes}
		if p.Endpoint != nil {
			at := p.Endpoint.AddrPort()
			s.Endpoint = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
		}
		out[p.PublicKey.String()] = s
	}
	return out, nil
}

// Call has the device call a peer elsewhere from now on. anew: they agree on keys again, as a relay must see that
// they do; otherwise what they agreed on counts there, too.
func (d *Device) Call(p fleet.WireGuardPeer, at netip.AddrPort, anew bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	own := Peer{Address: p.Address, Endpoint: at.String(), Keep: len(p.Ways) > 0}
	if err := d.configurePeer(Change{Key: p.Key, Peer: own}, false); err != nil {
		return fmt.Errorf("calling %s at %s: %w", p.Host, at, err)
	}
	now := time.Now()
	if !anew && d.agreedWith(p.Key, now) {
		delete(d.greets.due, p.Key)
		d.greet(own) // the peer learns where this host calls from
		return nil
	}
	from := now
	if d.key.Public().String() > p.Key {
		from = now.Add(greetLater)
	}
	if anew && from.Equal(now) {
		d.remake(p.Key, own)
	} else {
		d.greet(own)
	}
	d.greets.due[p.Key] = greeting{peer: own, since: now, next: from.Add(greetFar), pause: greetFar}
	d.greetMeanwhile()
	return nil
}

// agreed keys count for three minutes.
const agreedFor = 170 * time.Second

func (d *Device) agreedWith(key string, now time.Time) bool {
	has, err := d.tool.Device(d.name)
	if err != nil {
		return false
	}
	for _, p := range has.Peers {
		if p.PublicKey.String() == key {
			return now.Sub(p.LastHandshakeTime) < agreedFor
		}
	}
	return false
}

// Echo asks peers for an echo each (ICMPv6, RFC 4443), and returns how long those took that came within a limit.
func (d *Device) Echo(peers []netip.Addr, number uint16, limit time.Duration) (map[netip.Addr]time.Duration, error) {
	const request, reply, first = 128, 129, 8
	link, err := net.InterfaceByName(d.name)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var only unix.ICMPv6Filter
	for i := range only.Data {
		only.Data[i] = ^uint32(0)
	}
	only.Data[reply>>5] &^= 1 << (reply & 31)
	id := [2]byte{byte(unix.Getpid() >> 8), byte(unix.Getpid())}
	packet := []byte{request, 0, 0, 0, id[0], id[1], byte(number >> 8), byte(number)}
	begun := time.Now()
	err = unix.SetsockoptICMPv6Filter(fd, unix.SOL_ICMPV6, unix.ICMPV6_FILTER, &only)
	for _, p := range peers {
		_ = unix.Sendto(fd, packet, unix.MSG_DONTWAIT, &unix.SockaddrInet6{ZoneId: uint32(link.Index), Addr: p.As16()}) // lost, then
	}
	out := map[netip.Addr]time.Duration{}
	heard := make([]byte, 128)
	for err == nil && len(out) < len(peers) {
		left := limit - time.Since(begun)
		if left <= 0 {
			break
		}
		wait := unix.NsecToTimeval(left.Nanoseconds())
		if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
			break
		}
		n, from, e := unix.Recvfrom(fd, heard, 0)
		if errors.Is(e, unix.EAGAIN) || errors.Is(e, unix.EINTR) {
			continue
		}
		if err = e; err != nil {
			break
		}
		at, is := from.(*unix.SockaddrInet6)
		if is && n == first && [4]byte(heard[4:8]) == [4]byte(packet[4:8]) {
			out[netip.AddrFrom16(at.Addr)] = time.Since(begun)
		}
	}
	return out, err
}
