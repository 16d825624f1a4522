package overlay

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// A guest reaches nothing beyond its job's network: not its host by any address that it has, not the host's neighbours,
// and not who listens to everybody, whatever it sends. The host is the worst there is: it routes for others, and knows
// the way back.
func TestGuestsReachNothingBeyond(t *testing.T) { eachKind(t, guestsReachNothingBeyond) }

func guestsReachNothingBeyond(t *testing.T, as func(fleet.Network) fleet.Network) {
	const word = "beyond the network"
	hosts := stations(t, "a", "b")
	s, neighbour := hosts[0], hosts[1]
	n := as(network("j1", 1, "a", "a", "a")) // all of its guests are here, so nothing of it passes to the neighbour
	s.apply(n)
	p := s.use(n, 0)
	lan := strings.Fields(s.Run("ip", "-o", "route", "get", neighbour.Addr.String()))[2]
	s.Run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0", "net.ipv6.conf.all.disable_ipv6=0", "net.ipv6.conf.all.forwarding=1")
	s.Run("ip", "route", "add", "10.128.0.0/9", "dev", n.Subnet.BridgeName())
	s.Run("ip", "addr", "add", "169.254.7.7/16", "dev", lan)
	var listening []net.PacketConn
	s.Must(func() error {
		for _, at := range []string{"0.0.0.0:9998", "[::]:9997"} {
			c, err := net.ListenPacket("udp", at)
			if err != nil {
				return err
			}
			listening = append(listening, c)
		}
		return nil
	})
	var sniffer *testkit.Sniffer
	neighbour.Must(func() (err error) { sniffer, err = testkit.Sniff(word); return err })

	macs := []string{broadcast, "01:00:5e:00:00:01", "33:33:00:00:00:01", "01:80:c2:00:00:00"}
	for _, link := range []string{n.Subnet.BridgeName(), n.Subnet.TapName(0), lan} {
		macs = append(macs, strings.Fields(s.Run("ip", "-br", "link", "show", link))[2])
	}
	macs = append(macs, strings.Fields(neighbour.Run("ip", "-br", "link", "show", "up", "type", "veth"))[2])
	sent := 0
	for _, mac := range macs {
		for _, to := range []string{s.Addr.String(), neighbour.Addr.String(), "169.254.7.7", "169.254.169.254", "127.0.0.1", "224.0.0.1", "255.255.255.255", "198.18.255.255", "192.0.2.1", "10.0.0.1"} {
			p.send(mac, 0x0800, udp(p.addr, netip.MustParseAddr(to), 9998, word))
			p.send(mac, 0x0800, udp(neighbour.Addr, netip.MustParseAddr(to), 9998, word)) // in another's name
			sent += 2
		}
		for _, to := range []string{"ff02::1", "fe80::1", "::1"} {
			p.send(mac, 0x86dd, udp6(netip.MustParseAddr("fe80::7"), netip.MustParseAddr(to), 9997, word))
			sent++
		}
		p.say(mac, word)
	}
	for _, c := range listening {
		c.SetReadDeadline(time.Now().Add(noFrameFor))
		buffer := make([]byte, 100)
		if k, from, err := c.ReadFrom(buffer); err == nil {
			t.Errorf("its host received %q from %s", buffer[:k], from)
		}
		c.Close()
	}
	seen, err := sniffer.End()
	if err != nil || seen.Clear != 0 || seen.Lost != 0 {
		t.Errorf("of %d packets the neighbour saw %+v, %v", sent, seen, err)
	}
	// The neighbour does see what its host sends.
	neighbour.Must(func() (err error) { sniffer, err = testkit.Sniff(word); return err })
	s.Must(func() error {
		c, err := net.Dial("udp", netip.AddrPortFrom(neighbour.Addr, 9998).String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte(word))
		return err
	})
	time.Sleep(noFrameFor)
	if seen, err := sniffer.End(); err != nil || seen.Clear == 0 {
		t.Errorf("of the host the neighbour saw %+v, %v", seen, err)
	}
	if answer := p.hear(0x0800, noFrameFor); answer != "" {
		t.Errorf("somebody answered: % x", answer)
	}
}

// udp6 is udp by IPv6. Without a right checksum a host may drop it, so it has one.
func udp6(from, to netip.Addr, port uint16, text string) []byte {
	length := 8 + len(text)
	segment := binary.BigEndian.AppendUint16(nil, port)
	segment = binary.BigEndian.AppendUint16(segment, port)
	segment = binary.BigEndian.AppendUint16(segment, uint16(length))
	segment = append(append(segment, 0, 0), text...)
	pseudo := append(append(append([]byte{}, from.AsSlice()...), to.AsSlice()...), 0, 0, byte(length>>8), byte(length), 0, 0, 0, 17)
	var sum uint32
	for _, b := range [][]byte{pseudo, segment} {
		for i := 0; i < len(b); i += 2 {
			word := uint32(b[i]) << 8
			if i+1 < len(b) {
				word |= uint32(b[i+1])
			}
			sum += word
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(segment[6:], ^uint16(sum))
	head := append([]byte{0x60, 0, 0, 0, byte(length >> 8), byte(length), 17, 64}, from.AsSlice()...)
	return append(append(head, to.AsSlice()...), segment...)
}
