package overlay

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

func TestGateIsReadAsWritten(t *testing.T) {
	g := Gate{Port: 4789, From: map[netip.Addr][]int{netip.MustParseAddr("fe80::2"): {0x700003, 0x700001, 0x700001}, netip.MustParseAddr("fe80::1:1"): {0x70ffff}}}
	text := g.String()
	if text != "4789 fe80::2/700001,700003 fe80::1:1/70ffff" {
		t.Errorf("it is %q", text)
	}
	again, err := parseGate(text)
	if err != nil || again.String() != text {
		t.Errorf("%q becomes %q: %v", text, again.String(), err)
	}
	for _, bad := range []string{"", "x", "4789 nowhere/1", "4789 fe80::1/x", "99999"} {
		if _, err := parseGate(bad); err == nil {
			t.Errorf("%q is a gate", bad)
		}
	}
}

// frame is what VXLAN sends: a frame of a network for a guest.
func frame(n fleet.Network, guest int, text string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{8, 0, 0, 0}, uint32(n.Subnet.VNI())<<8)
	to, _ := net.ParseMAC(n.Subnet.GuestMAC(guest))
	from, _ := net.ParseMAC(n.Subnet.GuestMAC(fleet.MaxGuestsPerJob - 1))
	b = append(append(b, to...), from...)
	return append(binary.BigEndian.AppendUint16(b, experimental), text...)
}

// packet is a frame in UDP and IPv6, from fe80::2 to fe80::1. hidden is an extension header before UDP's, with its number.
func packet(payload []byte, number byte, hidden []byte) []byte {
	from, to := netip.MustParseAddr("fe80::2").As16(), netip.MustParseAddr("fe80::1").As16()
	datagram := binary.BigEndian.AppendUint16(nil, 40000)
	datagram = binary.BigEndian.AppendUint16(datagram, DefaultPort)
	datagram = binary.BigEndian.AppendUint16(datagram, uint16(8+len(payload)))
	datagram = append(append(datagram, 0, 0), payload...)
	sum := uint32(len(datagram)) + unix.IPPROTO_UDP
	for _, part := range [][]byte{from[:], to[:], append(datagram, 0)} {
		for i := 0; i+1 < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(datagram[6:], ^uint16(sum))
	p := binary.BigEndian.AppendUint16([]byte{0x60, 0, 0, 0}, uint16(len(hidden)+len(datagram)))
	p = append(append(append(p, number, 64), from[:]...), to[:]...)
	return append(append(p, hidden...), datagram...)
}

// hidings are headers before UDP's that a filter may not look behind.
var hidings = map[string]struct {
	number byte
	header []byte
}{
	"nothing":             {unix.IPPROTO_UDP, nil},
	"options for the end": {unix.IPPROTO_DSTOPTS, []byte{unix.IPPROTO_UDP, 0, 1, 4, 0, 0, 0, 0}},
	"options on the way":  {unix.IPPROTO_HOPOPTS, []byte{unix.IPPROTO_UDP, 0, 1, 4, 0, 0, 0, 0}},
	"a fragment's":        {unix.IPPROTO_FRAGMENT, []byte{unix.IPPROTO_UDP, 0, 0, 0, 1, 2, 3, 4}},
}

// pair is two hosts and a link of their own, as WireGuard's is.
func pair(t *testing.T) (a, b *station) {
	all := stations(t, "a", "b")
	lower(t, all)
	return all[0], all[1]
}

// put sends a whole packet from b's link to a.
func put(t *testing.T, a, b *station, p []byte) {
	t.Helper()
	var to net.HardwareAddr
	a.Must(func() error {
		link, err := net.InterfaceByName("low0")
		to = link.HardwareAddr
		return err
	})
	b.Must(func() error {
		link, err := net.InterfaceByName("low0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		at := unix.SockaddrLinklayer{Protocol: 0xdd86, Ifindex: link.Index, Halen: 6} // ETH_P_IPV6 in network byte order
		copy(at.Addr[:], to)
		return unix.Sendto(fd, p, 0, &at)
	})
}

// A host that has one job with another reaches nothing of its other jobs, whatever it puts before
// the frame. As soon as it is a host of such a job it does, before anything else of the job changes; and without the
// gate it would.
func TestHostsStayInTheirJobs(t *testing.T) {
	a, b := pair(t)
	shared, other := by(network("j1", 1, "a", "a", "b")), by(network("j2", 2, "a", "a", "c"))
	a.apply(shared, other)
	victim, own := a.use(other, 0), a.use(shared, 0)
	for name, h := range hidings {
		put(t, a, b, packet(frame(other, 0, "behind "+name), h.number, h.header))
	}
	victim.mustNotHear(experimental)
	put(t, a, b, packet(frame(shared, 0, "of the same job"), unix.IPPROTO_UDP, nil))
	own.mustHear("of the same job")

	coming := other
	coming.Peers = []string{"fe80::2", "fe80::3"}
	a.apply(shared, coming)
	put(t, a, b, packet(frame(other, 0, "it has come"), unix.IPPROTO_UDP, nil))
	victim.mustHear("it has come")
	a.apply(shared, other)
	put(t, a, b, packet(frame(other, 0, "it has left"), unix.IPPROTO_UDP, nil))
	victim.mustNotHear(experimental)

	for name, h := range hidings {
		if name == "options on the way" { // the kernel may not look at these
			continue
		}
		a.Run("tc", "qdisc", "del", "dev", "low0", "clsact")
		put(t, a, b, packet(frame(other, 0, "open"), h.number, h.header))
		if got := strings.TrimRight(victim.hear(experimental, surely), "\x00"); got != "open" {
			t.Errorf("behind %s: without the gate the guest hears %q, so this shows nothing", name, got)
		}
		a.apply(shared, other)
		put(t, a, b, packet(frame(other, 0, "closed again"), h.number, h.header))
		victim.mustNotHear(experimental)
	}
}

// A process cannot send frames in its host's name, to another host or to its own.
func TestProcessesSendNoFrames(t *testing.T) {
	a, b := pair(t)
	na, nb := by(network("j1", 1, "a", "a", "b")), by(network("j1", 1, "b", "a", "b"))
	a.apply(na)
	b.apply(nb)
	first, second := a.use(na, 0), b.use(nb, 1)
	say := func(on *station, to string, payload []byte) {
		t.Helper()
		on.Must(func() error {
			link, err := net.InterfaceByName("low0")
			if err != nil {
				return err
			}
			fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			at := &unix.SockaddrInet6{Port: DefaultPort, ZoneId: uint32(link.Index), Addr: netip.MustParseAddr(to).As16()}
			return ignoring(unix.Sendto(fd, payload, 0, at), unix.ENOBUFS)
		})
	}
	say(b, "fe80::1", frame(na, 0, "from a process"))
	say(b, "fe80::1", append(frame(na, 0, "in fragments"), make([]byte, 3000)...))
	say(a, "fe80::1", frame(na, 0, "from its own host"))
	first.mustNotHear(experimental)
	second.say(na.Subnet.GuestMAC(0), "from a guest")
	first.mustHear("from a guest")
	b.Run("tc", "filter", "del", "dev", "low0", "egress")
	say(b, "fe80::1", frame(na, 0, "nobody looks"))
	first.mustHear("nobody looks")
	b.apply(nb)
	say(b, "fe80::1", frame(na, 0, "somebody looks"))
	first.mustNotHear(experimental)
}

// While hosts of a job come and go nothing is lost of the others' frames.
func TestNothingIsLostWhileHostsComeAndGo(t *testing.T) {
	a, b := pair(t)
	na, nb := by(network("j1", 1, "a", "a", "b")), by(network("j1", 1, "b", "a", "b"))
	a.apply(na)
	b.apply(nb)
	first, second := a.use(na, 0), b.use(nb, 1)
	stop, sent := make(chan struct{}), make(chan int)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				sent <- i
				return
			case <-time.After(200 * time.Microsecond):
				second.say(na.Subnet.GuestMAC(0), fmt.Sprint(i))
			}
		}
	}()
	heard := make(chan []string)
	go func() {
		var all []string
		for {
			text := strings.TrimRight(first.hear(experimental, time.Second), "\x00")
			if text == "" {
				heard <- all
				return
			}
			all = append(all, text)
		}
	}()
	const changes = 40
	for i := range changes {
		n := na
		n.Peers = []string{"fe80::2", fmt.Sprintf("fe80::%d", 3+i)}
		a.apply(n)
		have, err := a.Read()
		if err != nil || !strings.Contains(have.GateIn[Key{Link: "low0"}], n.Peers[1]+"/700001") {
			t.Fatalf("it lets in %v: %v", have.GateIn, err)
		}
	}
	close(stop)
	many, got := <-sent, <-heard
	for i := range many {
		if i >= len(got) || got[i] != fmt.Sprint(i) {
			t.Fatalf("of %d frames %d came; number %d is missing", many, len(got), i)
		}
	}
	if many < changes {
		t.Errorf("%d frames were sent, which shows little", many)
	}
}

// Where the gate cannot be, no tunnel is made, and ports for guests of this host are.
func TestNoTunnelWithoutGate(t *testing.T) {
	s := stations(t, "a")[0]
	n := by(network("j1", 1, "a", "a", "b"))
	s.Readdress(config("a", "fe80::1%low0").Address)
	err := s.Do(func() error { return s.Apply(t.Context(), []fleet.Network{n}) })
	if err == nil || !strings.Contains(err.Error(), "low0") {
		t.Errorf("got %v", err)
	}
	if state := s.state(); strings.Contains(state, "pgx") || !strings.Contains(state, "pgt700001.0") {
		t.Errorf("there is\n%s", state)
	}
	s.Run("ip", "link", "add", "low0", "type", "veth", "peer", "name", "low1")
	testkit.Until(t, surely, "the link is there", func() bool { return strings.Contains(s.Run("ip", "-br", "link"), "low0") })
	s.Run("sh", "-ec", "ip link set low0 up; ip addr add fe80::1/64 dev low0 nodad")
	s.apply(n)
	if state := s.state(); !strings.Contains(state, "let in low0 -> 4789 fe80::2/700001\nlet out low0 -> 4789\n") || !strings.Contains(state, "hooks tags suppress") {
		t.Errorf("there is\n%s", state)
	}
	for _, damage := range []string{
		"tc qdisc del dev low0 clsact", "tc filter del dev low0 ingress", "tc filter del dev low0 egress", "tc filter del dev pgx700001 egress", "tc qdisc del dev pgx700001 clsact",
	} {
		good := s.state()
		s.Run("sh", "-ec", damage)
		if s.state() == good {
			t.Errorf("%s: not seen", damage)
		}
		s.apply(n)
		if now := s.state(); now != good {
			t.Errorf("%s: repaired to\n%s\ninstead of\n%s", damage, now, good)
		}
	}
}

// tunPair is a host whose link is a TUN device of wireguard-go's, as its process has it, and what writes to that.
func tunPair(t *testing.T) (*station, func(packets ...[]byte)) {
	t.Helper()
	s := stations(t, "a")[0]
	var link tun.Device
	s.Must(func() (err error) {
		link, err = tun.CreateTUN("low0", fleet.WireGuardMTU)
		return err
	})
	t.Cleanup(func() { link.Close() })
	s.Run("sh", "-ec", "ip link set low0 addrgenmode none up; ip addr add fe80::1/64 dev low0 nodad")
	s.Readdress(config("x", "fe80::1%low0").Address)
	return s, func(packets ...[]byte) {
		t.Helper()
		const room = 16 // wireguard-go has a header for the kernel in it
		buffers := make([][]byte, len(packets))
		for i, p := range packets {
			buffers[i] = append(make([]byte, room, 1<<16), p...)
		}
		if _, err := link.Write(buffers, room); err != nil {
			t.Error(err)
		}
	}
}

// A host that has one job with another sends a burst that wireguard-go gives the kernel as one packet: only the frames
// of that job arrive, wherever in the burst the others are. A burst of the one job arrives whole.
func TestBurstsStayInTheirJobs(t *testing.T) {
	a, write := tunPair(t)
	shared, other := by(network("j1", 1, "a", "a", "b")), by(network("j2", 2, "a", "a", "c"))
	a.apply(shared, other)
	victim, own := a.use(other, 0), a.use(shared, 0)
	long := strings.Repeat("x", 1200) // of several such, wireguard-go's header alone is in the packet's first part
	good, bad := packet(frame(shared, 0, long), unix.IPPROTO_UDP, nil), packet(frame(other, 0, long), unix.IPPROTO_UDP, nil)
	short := packet(frame(other, 0, "short"), unix.IPPROTO_UDP, nil)
	burst := func(n int, last ...[]byte) [][]byte { return append(slices.Repeat([][]byte{good}, n), last...) }
	for _, sent := range [][][]byte{burst(1, bad), burst(2, bad), burst(1, short), burst(7, bad), burst(30, bad), burst(30, short), burst(3, bad, good, good), {bad}, {bad, good}} {
		write(sent...)
	}
	victim.mustNotHear(experimental)
	for own.hear(experimental, time.Millisecond) != "" {
	}
	for _, n := range []int{1, 2, 4, 30} {
		write(burst(n)...)
		for i := range n {
			if got := own.hear(experimental, surely); got != long {
				t.Fatalf("of a burst of %d, packet %d comes as %d bytes", n, i, len(got))
			}
		}
	}
	a.Run("tc", "qdisc", "del", "dev", "low0", "clsact")
	write(burst(1, bad)...)
	if victim.hear(experimental, surely) == "" {
		t.Error("without the gate the guest hears nothing, so this shows nothing")
	}
}
