package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"pagurus/fleet"
)

// side is the job's side of a gateway: what its frames look like.
type side struct {
	subnet fleet.Subnet
	guests int
	mac    []byte // the gateway's
}

func newSide(subnet fleet.Subnet, guests int) side {
	return side{subnet, guests, hardware(subnet.GatewayMAC())}
}

func hardware(text string) []byte {
	mac, err := net.ParseMAC(text)
	if err != nil {
		panic(err) // it is made from numbers
	}
	return mac
}

// The places of what is read of frames.
const (
	macBytes    = 6
	etherBytes  = 14
	ipv4Bytes   = 20
	protocolAt  = 9
	sourceAt    = 12
	targetAt    = 16
	ipv4Ether   = 0x0800
	icmpNumber  = 1
	tcpNumber   = 6
	udpNumber   = 17
	frameBytes  = 1 << 16
	queueFrames = 1024
)

// guest is the number of the guest with an address.
func (s side) guest(a netip.Addr) (int, bool) {
	i := int(a.As4()[3]) - 1
	return i, i >= 0 && i < s.guests && s.subnet.GuestAddr(i) == a
}

// packet is the IPv4 packet in a frame from a guest, if a gateway takes it: from a guest's own addresses, to the gateway's link,
// with TCP or UDP inside. Of ICMP only what asks the gateway itself is taken: others' pings it would answer in their name.
func (s side) packet(frame []byte) ([]byte, bool) {
	if len(frame) < etherBytes+ipv4Bytes || !bytes.Equal(frame[:macBytes], s.mac) || binary.BigEndian.Uint16(frame[2*macBytes:]) != ipv4Ether {
		return nil, false
	}
	p := frame[etherBytes:]
	from, to := netip.AddrFrom4([4]byte(p[sourceAt:])), netip.AddrFrom4([4]byte(p[targetAt:]))
	i, known := s.guest(from)
	if p[0]>>4 != 4 || !known || !bytes.Equal(frame[macBytes:2*macBytes], hardware(s.subnet.GuestMAC(i))) {
		return nil, false
	}
	switch p[protocolAt] {
	case tcpNumber, udpNumber:
		return p, true
	case icmpNumber:
		return p, to == s.subnet.GatewayAddr()
	}
	return nil, false
}

// frame is a packet for a guest as it is sent to it; false: it is for no guest.
func (s side) frame(p []byte) ([]byte, bool) {
	if len(p) < ipv4Bytes {
		return nil, false
	}
	i, known := s.guest(netip.AddrFrom4([4]byte(p[targetAt:])))
	if !known {
		return nil, false
	}
	out := make([]byte, 0, etherBytes+len(p))
	out = append(append(out, hardware(s.subnet.GuestMAC(i))...), s.mac...)
	return append(binary.BigEndian.AppendUint16(out, ipv4Ether), p...), true
}

// receive passes what guests send to the network stack, until the link is gone.
func (s side) receive(tap *os.File, to *channel.Endpoint) error {
	b := make([]byte, frameBytes)
	for {
		n, err := tap.Read(b)
		if err != nil {
			return err
		}
		if p, takes := s.packet(b[:n]); takes {
			v := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(p)})
			to.InjectInbound(header.IPv4ProtocolNumber, v)
			v.DecRef()
		}
	}
}

// send passes what the network stack sends to guests. What does not fit into a guest's port is lost, as on any network.
func (s side) send(ctx context.Context, from *channel.Endpoint, tap *os.File) {
	for {
		v := from.ReadContext(ctx)
		if v == nil {
			return
		}
		view := v.ToView()
		if f, whole := s.frame(view.AsSlice()); whole {
			_, _ = tap.Write(f) // the link may be down for a moment
		}
		view.Release()
		v.DecRef()
	}
}
