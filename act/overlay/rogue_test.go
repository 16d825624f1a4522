package overlay

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// as sends a frame with another source address than the guest's own.
func (p *plug) as(from, to string, kind uint16, payload []byte) {
	p.t.Helper()
	own := p.mac
	p.mac, _ = net.ParseMAC(from)
	p.send(to, kind, payload)
	p.mac = own
}

const ipv6 = 0x86dd

// icmp6 makes an ICMPv6 message from a link-local address, with no checksum: nobody who hears it has to look.
func icmp6(to string, kind byte, body []byte) []byte {
	m := append([]byte{kind, 0, 0, 0}, body...)
	p := []byte{0x60, 0, 0, 0, 0, byte(len(m)), 58, 255}
	p = append(append(p, netip.MustParseAddr("fe80::66").AsSlice()...), netip.MustParseAddr(to).AsSlice()...)
	return append(p, m...)
}

// says is an ARP packet in which a guest says that an address is at its own port.
func (p *plug) says(op byte, whose, to netip.Addr) []byte {
	a := []byte{0, 1, 8, 0, 6, 4, 0, op}
	a = append(append(a, p.mac...), whose.AsSlice()...)
	return append(append(a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), to.AsSlice()...)
}

// dhcp is an offer of a DHCP server, as a broadcast.
func dhcp(from netip.Addr) []byte {
	offer := make([]byte, 240)
	offer[0] = 2 // a reply
	p := udp(from, netip.AddrFrom4([4]byte{255, 255, 255, 255}), 68, string(offer))
	binary.BigEndian.PutUint16(p[20:], 67)
	return p
}

// A rogue guest that says that it is another, a DHCP server or a router: no other guest and no host hears it, and
// where frames go does not change.
func TestRogueGuestIsNotHeard(t *testing.T) { eachKind(t, rogueGuestIsNotHeard) }

func rogueGuestIsNotHeard(t *testing.T, as func(fleet.Network) fleet.Network) {
	hosts := stations(t, "a", "b")
	at := func(host string) fleet.Network { return as(network("j1", 1, host, "a", "a", "b")) }
	for i, name := range []string{"a", "b"} {
		hosts[i].apply(at(name))
	}
	rogue, near, far := hosts[0].use(at("a"), 0), hosts[0].use(at("a"), 1), hosts[1].use(at("b"), 2)
	before := []string{hosts[0].state(), hosts[1].state()}
	for what, sends := range map[string]func(){
		"an ARP request in another's name": func() { rogue.as(near.mac.String(), broadcast, arp, rogue.says(1, near.addr, far.addr)) },
		"a gratuitous ARP":                 func() { rogue.send(broadcast, arp, rogue.says(1, far.addr, far.addr)) },
		"an ARP answer to all":             func() { rogue.send(broadcast, arp, rogue.says(2, near.addr, near.addr)) },
		"a DHCP offer":                     func() { rogue.send(broadcast, 0x0800, dhcp(rogue.addr)) },
		"a router advertisement":           func() { rogue.send("33:33:00:00:00:01", ipv6, icmp6("ff02::1", 134, make([]byte, 12))) },
		"a neighbour advertisement":        func() { rogue.send("33:33:00:00:00:01", ipv6, icmp6("ff02::1", 136, make([]byte, 20))) },
		"a multicast": func() {
			rogue.send("01:00:5e:00:00:fb", 0x0800, udp(rogue.addr, netip.MustParseAddr("224.0.0.251"), 5353, "mdns"))
		},
		"as another's port":    func() { rogue.as(near.mac.String(), broadcast, experimental, []byte("mine now")) },
		"as the tunnel":        func() { rogue.as("02:70:67:00:01:02", broadcast, experimental, []byte("mine now")) },
		"with a tag of a VLAN": func() { rogue.send(broadcast, 0x8100, []byte{0, 7, 0x88, 0xb5, 'x'}) },
		"a pause frame":        func() { rogue.send("01:80:c2:00:00:01", 0x8808, []byte{0, 1, 0xff, 0xff}) },
		"STP":                  func() { rogue.send("01:80:c2:00:00:00", 38, append([]byte{0x42, 0x42, 3}, make([]byte, 35)...)) },
	} {
		sends()
		time.Sleep(20 * time.Millisecond)
		for _, p := range []*plug{near, far} {
			for _, kind := range []uint16{arp, 0x0800, ipv6, experimental, 0x8100} {
				if got := p.hear(kind, time.Millisecond); got != "" {
					t.Errorf("%s: %s heard % x", what, p.addr, got)
				}
			}
		}
	}
	time.Sleep(noFrameFor)
	for _, p := range []*plug{near, far} {
		p.mustNotHear(arp)
	}
	for i, s := range hosts {
		if now := s.state(); now != before[i] {
			t.Errorf("the state of %s was\n%s\nand is\n%s", s.Addr, before[i], now)
		}
	}
	// All of them are still where they were.
	for _, p := range []*plug{near, far} {
		rogue.say(p.mac.String(), "to "+p.addr.String())
		p.mustHear("to " + p.addr.String())
	}
	near.say(far.mac.String(), "still here")
	far.mustHear("still here")
	far.say(near.mac.String(), "and there")
	near.mustHear("and there")
}

// A guest of one job that sends VXLAN itself, in its job's network or at its host's tunnel, reaches no other job.
func TestTunnelInATunnel(t *testing.T) { eachKind(t, tunnelInATunnel) }

func tunnelInATunnel(t *testing.T, as func(fleet.Network) fleet.Network) {
	hosts := stations(t, "a", "b")
	one := func(host string) fleet.Network { return as(network("j1", 1, host, "a", "b")) }
	two := func(host string) fleet.Network { return as(network("j2", 2, host, "a", "b")) }
	for i, name := range []string{"a", "b"} {
		hosts[i].apply(one(name), two(name))
	}
	rogue, mate := hosts[0].use(one("a"), 0), hosts[1].use(one("b"), 1)
	victims := []*plug{hosts[0].use(two("a"), 0), hosts[1].use(two("b"), 1)}
	for _, v := range victims {
		inner := append(append(append([]byte{}, v.mac...), rogue.mac...), 0x88, 0xb5)
		inner = append(inner, "from another job"...)
		vni := two("a").Subnet.VNI()
		packet := append([]byte{8, 0, 0, 0, byte(vni >> 16), byte(vni >> 8), byte(vni), 0}, inner...)
		for _, to := range []netip.Addr{hosts[0].Addr, hosts[1].Addr, mate.addr, v.addr} {
			for _, mac := range []string{mate.mac.String(), broadcast, v.mac.String(), linkAddress(hosts[0], "pgb700001"), linkAddress(hosts[0], "pgx700001")} {
				rogue.send(mac, 0x0800, udp(rogue.addr, to, DefaultPort, string(packet)))
			}
		}
	}
	time.Sleep(noFrameFor)
	for _, v := range victims {
		if got := v.hear(experimental, time.Millisecond); got != "" {
			t.Errorf("%s heard %q", v.addr, got)
		}
	}
}

func linkAddress(s *station, link string) string {
	return strings.Fields(s.Run("ip", "-br", "link", "show", link))[2]
}
