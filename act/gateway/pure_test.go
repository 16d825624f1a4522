package gateway

import (
	"net/netip"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"pagurus/fleet"
)

func TestPublic(t *testing.T) {
	for text, want := range map[string]bool{
		"1.1.1.1": true, "203.0.113.7": true, "192.0.1.1": true, "11.0.0.1": true, "172.32.0.1": true, "100.128.0.1": true, "2606:4700::1": true,
		"10.0.0.1": false, "10.128.0.1": false, "172.16.0.1": false, "172.31.255.255": false, "192.168.1.1": false, "169.254.169.254": false, "168.63.129.16": false,
		"100.64.0.1": false, "100.127.255.255": false, "127.0.0.1": false, "0.0.0.0": false, "224.0.0.251": false, "239.1.1.1": false,
		"255.255.255.255": false, "240.0.0.1": false, "198.18.0.1": false, "192.0.0.8": false,
		"::1": false, "fc00::1": false, "fd12::1": false, "fe80::1": false, "ff02::1": false, "::ffff:10.0.0.1": false, "::ffff:1.1.1.1": true,
		"64:ff9b::a00:1": false, "2002:a00:1::1": false, "2001:0:1::1": false,
	} {
		if got := Public(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: public %v, want %v", text, got, want)
		}
	}
	if Public(netip.Addr{}) {
		t.Error("no address is public")
	}
}

// ip is an IPv4 packet without options.
func ip(protocol byte, from, to netip.Addr) []byte {
	p := make([]byte, ipv4Bytes+8)
	p[0], p[protocolAt] = 0x45, protocol
	copy(p[sourceAt:], from.AsSlice())
	copy(p[targetAt:], to.AsSlice())
	return p
}

func framed(to, from string, ether uint16, p []byte) []byte {
	f := append(append([]byte{}, hardware(to)...), hardware(from)...)
	return append(append(f, byte(ether>>8), byte(ether)), p...)
}

// TestTaken: only what a guest sends from its own addresses is taken.
func TestTaken(t *testing.T) {
	const net fleet.Subnet = 7
	s := newSide(net, 2)
	one, two, out := net.GuestAddr(0), net.GuestAddr(1), netip.MustParseAddr("203.0.113.1")
	gate, mac := net.GatewayMAC(), net.GuestMAC(0)
	for what, c := range map[string]struct {
		frame []byte
		want  bool
	}{
		"TCP":                       {framed(gate, mac, ipv4Ether, ip(tcpNumber, one, out)), true},
		"UDP":                       {framed(gate, mac, ipv4Ether, ip(udpNumber, one, out)), true},
		"a ping of the gateway":     {framed(gate, mac, ipv4Ether, ip(icmpNumber, one, net.GatewayAddr())), true},
		"a ping of others":          {framed(gate, mac, ipv4Ether, ip(icmpNumber, one, out)), false},
		"another's address":         {framed(gate, mac, ipv4Ether, ip(tcpNumber, two, out)), false},
		"another's MAC":             {framed(gate, net.GuestMAC(1), ipv4Ether, ip(tcpNumber, one, out)), false},
		"no guest's address":        {framed(gate, mac, ipv4Ether, ip(tcpNumber, net.GuestAddr(2), out)), false},
		"the file server's address": {framed(gate, net.ShareMAC(), ipv4Ether, ip(tcpNumber, net.ShareAddr(), out)), false},
		"the gateway's own address": {framed(gate, gate, ipv4Ether, ip(tcpNumber, net.GatewayAddr(), out)), false},
		"another job's address":     {framed(gate, mac, ipv4Ether, ip(tcpNumber, fleet.Subnet(8).GuestAddr(0), out)), false},
		"an address of outside":     {framed(gate, mac, ipv4Ether, ip(tcpNumber, out, netip.MustParseAddr("198.51.100.1"))), false},
		"to another link":           {framed(net.GuestMAC(1), mac, ipv4Ether, ip(tcpNumber, one, out)), false},
		"broadcast":                 {framed("ff:ff:ff:ff:ff:ff", mac, ipv4Ether, ip(udpNumber, one, out)), false},
		"IPv6":                      {framed(gate, mac, 0x86dd, make([]byte, 60)), false},
		"SCTP":                      {framed(gate, mac, ipv4Ether, ip(132, one, out)), false},
		"GRE":                       {framed(gate, mac, ipv4Ether, ip(47, one, out)), false},
		"a half":                    {framed(gate, mac, ipv4Ether, ip(tcpNumber, one, out)[:12]), false},
		"nothing":                   {nil, false},
	} {
		if _, got := s.packet(c.frame); got != c.want {
			t.Errorf("%s: taken %v, want %v", what, got, c.want)
		}
	}
	if _, sent := s.frame(ip(tcpNumber, out, netip.MustParseAddr("10.128.7.9"))); sent {
		t.Error("a packet for no guest is sent")
	}
	if f, sent := s.frame(ip(tcpNumber, out, two)); !sent || string(f[:macBytes]) != string(hardware(net.GuestMAC(1))) {
		t.Errorf("a packet for a guest became % x", f)
	}
}

func FuzzPacket(f *testing.F) {
	s := newSide(7, 2)
	f.Add(framed(fleet.Subnet(7).GatewayMAC(), fleet.Subnet(7).GuestMAC(0), ipv4Ether, ip(tcpNumber, fleet.Subnet(7).GuestAddr(0), netip.MustParseAddr("1.1.1.1"))))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, takes := s.packet(b); takes && len(p) < ipv4Bytes {
			t.Error("too little is taken")
		}
		s.frame(b)
	})
}

func TestNames(t *testing.T) {
	for name, free := range map[string]bool{
		"example.org.": true, "a.b.example.com.": true, "8.8.8.8.in-addr.arpa.": true,
		"fritz.box.": true, // its address is refused
		"printer.":   false, "printer.local.": false, "nas.lan.": false, "x.home.arpa.": false, "metadata.google.internal.": false, ".": false,
		"1.0.168.192.in-addr.arpa.": false, "254.169.254.169.in-addr.arpa.": false, "b.in-addr.arpa.": false, "1.in-addr.arpa.": false, "x.ip6.arpa.": false,
		"LOCALHOST.": false, "a.LocalHost.": false,
		"1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.": false,
		"1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.0.6.2.ip6.arpa.": true,
	} {
		if why := refusedName(name); (why == "") != free {
			t.Errorf("%s: refused because %q, want free %v", name, why, free)
		}
	}
}

// TestAnswers: no resolver's answer tells guests of private addresses, or has another question's name.
func TestAnswers(t *testing.T) {
	q := dnsmessage.Question{Name: dnsmessage.MustNewName("example.org."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	h := dnsmessage.Header{ID: 5}
	answer := func(id uint16, name, a string) []byte {
		m := dnsmessage.Message{Header: dnsmessage.Header{ID: id, Response: true}, Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: q.Type, Class: q.Class}},
			Answers: []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name), Class: q.Class}, Body: &dnsmessage.AResource{A: netip.MustParseAddr(a).As4()}}}}
		b, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for what, c := range map[string]struct {
		message []byte
		good    bool
	}{
		"good": {answer(5, "example.org.", "203.0.113.1"), true}, "in other letters": {answer(5, "Example.ORG.", "203.0.113.1"), true},
		"private": {answer(5, "example.org.", "192.168.1.1"), false}, "metadata": {answer(5, "example.org.", "169.254.169.254"), false},
		"another": {answer(5, "example.net.", "203.0.113.1"), false}, "another's": {answer(6, "example.org.", "203.0.113.1"), false},
		"half": {answer(5, "example.org.", "203.0.113.1")[:20], false}, "none": {nil, false},
	} {
		if err := answered(h, q, c.message); (err == nil) != c.good {
			t.Errorf("%s: %v, want good %v", what, err, c.good)
		}
	}
	if _, _, err := question(answer(5, "example.org.", "203.0.113.1")); err == nil {
		t.Error("an answer is taken for a question")
	}
}

func FuzzQuestion(f *testing.F) {
	m := dnsmessage.Message{Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName("example.org."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
	b, err := m.Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, q, err := question(b); err == nil {
			refusedName(q.Name.String())
			_ = answered(h, q, b)
		}
	})
}

// TestRoom: one guest's connections leave room for the others', and what is given back can be taken.
func TestRoom(t *testing.T) {
	r := newRoom(3, 2)
	a, b := netip.MustParseAddr("10.128.0.1"), netip.MustParseAddr("10.128.0.2")
	back, free := r.takePlace(a)
	_, more := r.takePlace(a)
	if _, most := r.takePlace(a); !free || !more || most {
		t.Errorf("a guest with two of two places: %v %v %v", free, more, most)
	}
	if _, free := r.takePlace(b); !free {
		t.Error("another guest found no room")
	}
	if _, free := r.takePlace(b); free {
		t.Error("there are four of three places")
	}
	back()
	if _, free := r.takePlace(b); !free {
		t.Error("a place that was given back is not free")
	}
}
