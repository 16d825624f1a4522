package overlay

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// station is a host with its overlay.
type station struct {
	*testkit.Host
	*Overlay
	t *testing.T
}

func stations(t *testing.T, names ...string) []*station {
	t.Helper()
	testkit.Leftovers(t)
	var all []*station
	for i, h := range testkit.Hosts(t, len(names)) {
		s := &station{Host: h, t: t}
		h.Must(func() (err error) {
			s.Overlay, err = Open(config(names[i], h.Addr.String()))
			return err
		})
		t.Cleanup(func() { s.Close() })
		all = append(all, s)
	}
	return all
}

func (s *station) apply(networks ...fleet.Network) {
	s.t.Helper()
	s.Must(func() error { return s.Apply(context.Background(), networks) })
}

func (s *station) state() string {
	s.t.Helper()
	state, err := s.Read()
	if err != nil {
		s.t.Fatal(err)
	}
	return state.String()
}

func TestKernelStateBecomesAsWanted(t *testing.T) {
	s := stations(t, "a")[0]
	n := network("j1", 1, "a", "a", "b", "?", "a")
	n.Share = &fleet.Share{Export: "/home/x", UID: 1000}
	n.Endpoints = append(n.Endpoints, fleet.Endpoint{Addr: n.Subnet.ShareAddr(), MAC: n.Subnet.ShareMAC(), Host: "a", VTEP: "198.18.0.1"})
	other := network("j2", 300, "a", "b", "a")
	s.apply(n, other)
	golden(t, "kernel.txt", s.state())
	have, err := s.Read()
	if err != nil {
		t.Fatal(err)
	}
	if rest := Diff(have, want(t, s.config, n, other)); len(rest) > 0 {
		t.Errorf("applying again would change %v", rest)
	}
	s.apply(other)
	if text := s.state(); strings.Contains(text, "700001") || !strings.Contains(text, "70012c") {
		t.Errorf("after one job ended:\n%s", text)
	}
	s.Must(func() error { return s.Clear(context.Background()) })
	if text := s.state(); text != "" {
		t.Errorf("after Clear there is still\n%s", text)
	}
}

// A second Overlay, as after a restart, changes nothing: links keep their index.
func TestRestart(t *testing.T) {
	s := stations(t, "a")[0]
	n := network("j1", 1, "a", "a", "b")
	s.apply(n)
	links := func() string { return s.Run("sh", "-c", "ip -o link | cut -d: -f1,2") } // not their states, which change late
	before := links()
	s.Close()
	s.Must(func() (err error) {
		s.Overlay, err = Open(config("a", s.Addr.String()))
		return err
	})
	s.apply(n)
	if after := links(); after != before {
		t.Errorf("links were %s now %s", before, after)
	}
}

func TestRepairsWhatACrashLeft(t *testing.T) {
	s := stations(t, "a")[0]
	n := network("j1", 1, "a", "a", "b")
	s.apply(n)
	good := s.state()
	for _, damage := range []string{
		"ip link del pgb700001",
		"ip link del pgx700001",
		"ip link set pgt700001.0 nomaster",
		"ip link set pgt700001.0 down",
		"ip link set pgb700001 mtu 1280",
		"tc filter del dev pgb700001 ingress",
		"tc qdisc del dev pgb700001 clsact",
		"ip link set pgb700001 type bridge stp_state 1 mcast_snooping 1",
		"ip link set pgx700001 addrgenmode eui64",
		"ip link add pgtabcdef.0 type bridge",
		"ip link add pgs000001 type veth peer name pgn000001",
		"ip link del pgx700001; ip link add pgx700001 type bridge",
		"ip link del pgx700001; ip link add pgx700001 type vxlan id 99 local 198.18.0.1 dstport 4789",
		"ip link del pgx700001; ip link add pgxffffff type vxlan id 7340033 local 198.18.0.1 dstport 4789 nolearning",
		"bridge link set dev pgt700001.0 learning on flood on mcast_flood on bcast_flood on hairpin on",
		"bridge link set dev pgx700001 neigh_suppress off",
		"tc qdisc del dev pgx700001 clsact",
		"tc qdisc del dev pgt700001.0 clsact",
		"bridge fdb del 02:70:67:00:01:02 dev pgx700001 self",
		"bridge fdb replace 02:70:67:00:01:02 dev pgx700001 dst 198.18.0.77 self permanent",
		"bridge fdb append 00:00:00:00:00:00 dev pgx700001 dst 198.18.0.77; bridge fdb append 00:00:00:00:00:00 dev pgx700001 dst 198.18.0.78",
		"bridge fdb replace 02:70:67:00:01:02 dev pgt700001.0 master static",
		"bridge fdb add 02:00:00:00:00:01 dev pgt700001.0 master static",
		"ip neigh del 10.128.1.1 dev pgb700001",
		"ip neigh replace 10.128.1.2 lladdr 02:00:00:00:00:01 dev pgb700001 nud permanent",
		"ip neigh add 10.128.1.9 lladdr 02:00:00:00:00:01 dev pgb700001 nud permanent",
	} {
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

// A bridge keeps its hardware address, whatever becomes its port: with another one it would
// forget its neighbours.
func TestBridgeKeepsItsAddress(t *testing.T) {
	s := stations(t, "a")[0]
	s.apply(network("j1", 1, "a", "a", "b"))
	neighbours := func() string { return s.Run("ip", "neigh", "show", "dev", "pgb700001") }
	before := neighbours()
	if !strings.Contains(before, "10.128.1.2") {
		t.Fatalf("the bridge knows only %q", before)
	}
	s.Run("sh", "-ec", "ip link add low address 02:00:00:00:00:01 type veth peer name lower; ip link set low master pgb700001; ip link set low up")
	if after := neighbours(); after != before {
		t.Errorf("with another port the bridge knows %q, before %q", after, before)
	}
}

func TestForeignLinksAreNotTouched(t *testing.T) {
	s := stations(t, "a")[0]
	for _, name := range []string{"pgbouncer0", "pgb70000", "pgb7000011", "pgt700001.x", "xpgb700001", "docker0"} {
		s.Run("ip", "link", "add", name, "type", "bridge")
	}
	s.Run("ip", "link", "add", "vx9", "type", "vxlan", "id", "9", "dstport", "4789", "local", s.Addr.String())
	s.Run("bridge", "fdb", "append", "00:00:00:00:00:00", "dev", "vx9", "dst", "198.18.0.9")
	s.Run("ip", "neigh", "add", "198.18.0.9", "lladdr", "02:00:00:00:00:09", "dev", testkit.UplinkName, "nud", "permanent")
	look := func() string {
		return s.Run("ip", "-d", "-o", "link", "show") + s.Run("bridge", "fdb", "show") + s.Run("ip", "neigh", "show", "nud", "permanent")
	}
	before := look()
	s.apply(network("j1", 1, "a", "a", "b"))
	s.Must(func() error { return s.Clear(context.Background()) })
	if after := look(); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
}

// If another link has the name or the number, the error says so, and the other job's
// network is made.
func TestErrorsLeaveTheRestWorking(t *testing.T) {
	s := stations(t, "a")[0]
	s.Run("ip", "link", "add", "foreign", "type", "vxlan", "id", "7340033", "dstport", "4789", "local", s.Addr.String())
	blocked, free := network("j1", 1, "a", "a", "b"), network("j2", 2, "a", "a", "b")
	err := s.Do(func() error { return s.Apply(context.Background(), []fleet.Network{blocked, free}) })
	if err == nil || !strings.Contains(err.Error(), "pgx700001") {
		t.Errorf("error %v does not name the tunnel", err)
	}
	if have, _ := s.Read(); have.Forward[Key{"pgb700002", free.Subnet.GuestMAC(0)}] != "pgt700002.0" {
		t.Errorf("the free network is not there:\n%s", s.state())
	}
	s.Run("ip", "link", "del", "foreign")
	s.apply(blocked, free)
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Do(func() error { return s.Apply(cancelled, nil) }); err == nil {
		t.Error("a cancelled Apply reports no error")
	}
	if _, err := Open(Config{Host: "a"}); err == nil {
		t.Error("a host without an address was accepted")
	}
}

// plug acts as a guest's network card.
type plug struct {
	t      *testing.T
	file   *os.File
	header int // bytes before each frame
	mac    net.HardwareAddr
	addr   netip.Addr
}

// eachKind runs a test with virtual machines and with containers.
func eachKind(t *testing.T, test func(t *testing.T, as func(fleet.Network) fleet.Network)) {
	t.Run("machines", func(t *testing.T) { test(t, func(n fleet.Network) fleet.Network { return n }) })
	t.Run("containers", func(t *testing.T) { test(t, contained) })
}

// use attaches a guest to its port, of either kind.
func (s *station) use(n fleet.Network, guest int) *plug {
	s.t.Helper()
	for _, p := range n.Ports {
		if p.Index == guest && p.Kind == fleet.Container {
			return s.dock(n, guest)
		}
	}
	return s.plug(n, guest)
}

// dock is plug for a container: a namespace with the other end of the port.
func (s *station) dock(n fleet.Network, guest int) *plug {
	s.t.Helper()
	p := &plug{t: s.t, addr: n.Subnet.GuestAddr(guest)}
	p.mac, _ = net.ParseMAC(n.Subnet.GuestMAC(guest))
	in := testkit.Namespace(s.t)
	s.Run("ip", "link", "set", n.Subnet.PortPeerName(guest), "netns", in.Namespace, "name", "eth0")
	in.Run("ip", "link", "set", "eth0", "up")
	if got := strings.Fields(in.Run("ip", "-br", "link", "show", "dev", "eth0"))[2]; got != p.mac.String() {
		s.t.Errorf("the container's link has the address %s instead of %s", got, p.mac)
	}
	if text := in.Run("ip", "-o", "link", "show", "dev", "eth0"); !strings.Contains(text, fmt.Sprintf(" mtu %d ", fleet.NetworkMTU)) {
		s.t.Errorf("the container's link has not the network's MTU: %s", text)
	}
	in.Must(func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		const all = 0x0300 // ETH_P_ALL in network byte order
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, all)
		if err != nil {
			return err
		}
		p.file = os.NewFile(uintptr(fd), "eth0")
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}))
	})
	s.t.Cleanup(func() { p.file.Close() })
	s.forwards(n, guest)
	return p
}

// forwards waits until the bridge sees the guest's port up, which the kernel may report
// up to a second late.
func (s *station) forwards(n fleet.Network, guest int) {
	s.t.Helper()
	testkit.Until(s.t, surely, "the bridge's port forwards", func() bool {
		return strings.Contains(s.Run("bridge", "link", "show", "dev", n.Subnet.TapName(guest)), "state forwarding")
	})
}

func (s *station) plug(n fleet.Network, guest int) *plug {
	s.t.Helper()
	p := &plug{t: s.t, addr: n.Subnet.GuestAddr(guest), header: vnetHeader}
	p.mac, _ = net.ParseMAC(n.Subnet.GuestMAC(guest))
	s.Must(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		r, err := unix.NewIfreq(n.Subnet.TapName(guest))
		if err != nil {
			return err
		}
		r.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, r); err != nil {
			return err
		}
		p.file = os.NewFile(uintptr(fd), r.Name()) // only now: the poller does not notice a later TUNSETIFF
		return nil
	})
	s.t.Cleanup(func() { p.file.Close() })
	s.forwards(n, guest)
	return p
}

const vnetHeader = 10

func (p *plug) send(to string, kind uint16, payload []byte) {
	p.t.Helper()
	mac, err := net.ParseMAC(to)
	if err != nil {
		p.t.Fatal(err)
	}
	frame := append(make([]byte, p.header), mac...)
	frame = append(frame, p.mac...)
	frame = binary.BigEndian.AppendUint16(frame, kind)
	if _, err := p.file.Write(append(frame, payload...)); err != nil {
		p.t.Fatal(err)
	}
}

// experimental is an EtherType for local experiments (IEEE 802).
const experimental = 0x88b5

func (p *plug) say(to, text string) { p.send(to, experimental, []byte(text)) }

// hear returns the next frame of a kind, or "" if none arrives within wait.
func (p *plug) hear(kind uint16, wait time.Duration) string {
	p.t.Helper()
	p.file.SetReadDeadline(time.Now().Add(wait))
	buffer := make([]byte, 4096)
	for {
		n, err := p.file.Read(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			n, err = p.waiting(buffer)
		}
		if err != nil {
			return ""
		}
		if frame := buffer[p.header:n]; len(frame) >= 14 && binary.BigEndian.Uint16(frame[12:]) == kind {
			return string(frame[14:])
		}
	}
}

// waiting reads a frame that is there already. On a busy machine a deadline may have passed before a read begins, which then
// reads nothing.
func (p *plug) waiting(into []byte) (n int, err error) {
	p.file.SetReadDeadline(time.Time{})
	raw, err := p.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		n, failed = unix.Read(int(fd), into) // which does not wait
		return true
	})
	return n, errors.Join(err, failed)
}

const (
	surely     = 10 * time.Second       // for expected frames
	noFrameFor = 300 * time.Millisecond // for unexpected frames; a slow machine only makes the test more lenient
)

func (p *plug) mustHear(text string) {
	p.t.Helper()
	if got := p.hear(experimental, surely); strings.TrimRight(got, "\x00") != text {
		p.t.Errorf("%s heard %q instead of %q", p.addr, got, text)
	}
}

func (p *plug) mustNotHear(kind uint16) {
	p.t.Helper()
	if got := p.hear(kind, noFrameFor); got != "" {
		p.t.Errorf("%s heard %q", p.addr, got)
	}
}

const (
	arp       = 0x0806
	broadcast = "ff:ff:ff:ff:ff:ff"
)

func (p *plug) ask(whose netip.Addr) {
	q := []byte{0, 1, 8, 0, 6, 4, 0, 1}
	q = append(append(q, p.mac...), p.addr.AsSlice()...)
	q = append(append(q, 0, 0, 0, 0, 0, 0), whose.AsSlice()...)
	p.send(broadcast, arp, q)
}

func (p *plug) mustLearn(whose netip.Addr, mac string) {
	p.t.Helper()
	p.ask(whose)
	answer := p.hear(arp, surely)
	if len(answer) < 28 || answer[7] != 2 || net.HardwareAddr(answer[8:14]).String() != mac || !bytes.Equal([]byte(answer[14:18]), whose.AsSlice()) {
		p.t.Errorf("%s asked for %s and was told % x", p.addr, whose, answer)
	}
}

// Two hosts, two jobs, two guests of each on each host: all guests of a job reach each
// other, by ARP and by frames, and no others.
func TestGuestsReachTheirOwnJobOnly(t *testing.T) { eachKind(t, guestsReachTheirOwnJobOnly) }

func guestsReachTheirOwnJobOnly(t *testing.T, as func(fleet.Network) fleet.Network) {
	hosts := stations(t, "a", "b")
	jobs := func(host string) []fleet.Network {
		return []fleet.Network{as(network("j1", 1, host, "a", "b", "a", "b")), as(network("j2", 2, host, "a", "b", "a", "b"))}
	}
	plugs := make([][]*plug, 2)
	for i, name := range []string{"a", "b"} {
		hosts[i].apply(jobs(name)...)
	}
	for j := range plugs {
		for g := range 4 {
			plugs[j] = append(plugs[j], hosts[g%2].use(jobs([]string{"a", "b"}[g%2])[j], g))
		}
	}
	for j, n := range jobs("a") {
		for from, p := range plugs[j] {
			for to, e := range n.Endpoints {
				if from == to {
					continue
				}
				p.mustLearn(e.Addr, e.MAC)
				text := fmt.Sprintf("job %d guest %d to %d", j, from, to)
				p.say(e.MAC, text)
				plugs[j][to].mustHear(text)
			}
		}
	}
	one := plugs[0][0]
	for name, to := range map[string]string{
		"broadcast": broadcast, "multicast": "01:00:5e:00:00:01", "unknown": "02:70:67:00:01:99",
		"another job's guest": plugs[1][1].mac.String(), "link-local group": "01:80:c2:00:00:03", "STP": "01:80:c2:00:00:00",
	} {
		one.say(to, name)
	}
	one.ask(netip.MustParseAddr("10.128.1.77"))
	time.Sleep(noFrameFor) // for all of them
	for j := range plugs {
		for _, p := range plugs[j] {
			for _, kind := range []uint16{experimental, arp} {
				if got := p.hear(kind, time.Millisecond); got != "" {
					t.Errorf("%s heard %q", p.addr, got)
				}
			}
		}
	}
	if have, _ := hosts[0].Read(); strings.Contains(have.String(), "learnt") {
		t.Errorf("something was learnt:\n%s", have)
	}
}

// A guest cannot reach its host, by ARP or by frames to any hardware address.
func TestGuestsDoNotReachTheHost(t *testing.T) { eachKind(t, guestsDoNotReachTheHost) }

func guestsDoNotReachTheHost(t *testing.T, as func(fleet.Network) fleet.Network) {
	s := stations(t, "a")[0]
	n := as(network("j1", 1, "a", "a", "b"))
	s.apply(n)
	p := s.use(n, 0)
	// The worst case: a host that would route the answer back.
	s.Run("ip", "route", "add", "10.128.0.0/9", "dev", "pgb700001")
	var listening net.PacketConn
	s.Must(func() (err error) {
		listening, err = net.ListenPacket("udp4", "198.18.0.1:9999")
		return err
	})
	defer listening.Close()
	p.ask(s.Addr)
	if answer := p.hear(arp, noFrameFor); answer != "" {
		t.Errorf("the host answered for its address: % x", answer)
	}
	macs := []string{broadcast, "01:00:5e:00:00:01"}
	for last := range 16 {
		macs = append(macs, fmt.Sprintf("01:80:c2:00:00:%02x", last))
	}
	for _, link := range []string{"pgb700001", "pgt700001.0", "pgx700001"} {
		macs = append(macs, strings.Fields(s.Run("cat", "/proc/net/dev_mcast") + " ")[0])
		macs[len(macs)-1] = strings.Fields(s.Run("ip", "-br", "link", "show", link))[2]
	}
	for _, mac := range macs {
		p.send(mac, 0x0800, udp(p.addr, s.Addr, 9999, "to "+mac))
	}
	listening.SetReadDeadline(time.Now().Add(noFrameFor))
	buffer := make([]byte, 100)
	for {
		k, _, err := listening.ReadFrom(buffer)
		if err != nil {
			break
		}
		t.Errorf("the host received %q", buffer[:k])
	}
}

// udp makes an IPv4 packet; UDP checksum 0 means none.
func udp(from, to netip.Addr, port uint16, text string) []byte {
	p := []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0}
	p = append(append(p, from.AsSlice()...), to.AsSlice()...)
	binary.BigEndian.PutUint16(p[2:], uint16(28+len(text)))
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	binary.BigEndian.PutUint16(p[10:], ^uint16(sum+sum>>16))
	p = binary.BigEndian.AppendUint16(p, port)
	p = binary.BigEndian.AppendUint16(p, port)
	p = binary.BigEndian.AppendUint16(p, uint16(8+len(text)))
	return append(append(p, 0, 0), text...)
}

// Guest 0 moves from a to b. Its port at b exists before and gets nothing. When the
// endpoint changes, frames from both hosts go there. The port at a stays until it is
// unwanted, and gets no more.
func TestMove(t *testing.T) { eachKind(t, moves) }

func moves(t *testing.T, as func(fleet.Network) fleet.Network) {
	hosts := stations(t, "a", "b")
	a, b := hosts[0], hosts[1]
	at := func(host string, ports ...int) (networks [2]fleet.Network) {
		for i, self := range []string{"a", "b"} {
			networks[i] = network("j1", 1, self, host, "a", "b")
		}
		for _, i := range ports { // other hosts with a port for guest 0
			networks[i].Ports = append([]fleet.Port{{Guest: "j1g0", Index: 0}}, networks[i].Ports...)
		}
		for i, n := range networks {
			networks[i] = as(n)
		}
		return networks
	}
	both := func(n [2]fleet.Network) { a.apply(n[0]); b.apply(n[1]) }
	n := at("a")
	both(n)
	old, localPeer, remotePeer := a.use(n[0], 0), a.use(n[0], 1), b.use(n[1], 2)
	mac := n[0].Subnet.GuestMAC(0)
	check := func(stage string, hears, deaf *plug) {
		t.Helper()
		for _, peer := range []*plug{localPeer, remotePeer} {
			peer.say(mac, stage)
			hears.mustHear(stage)
		}
		if deaf != nil {
			deaf.mustNotHear(experimental)
		}
	}
	check("before", old, nil)
	during := at("a", 1)
	both(during)
	young := b.use(during[1], 0)
	check("while copying", old, young)
	index := a.Run("cat", "/proc/net/dev")
	both(at("b", 0))
	check("after the switch", young, old)
	if now := a.Run("cat", "/proc/net/dev"); strings.Count(now, "\n") != strings.Count(index, "\n") {
		t.Errorf("links of the first host changed:\n%s", now)
	}
	old.file.Close()
	both(at("b"))
	check("when retired", young, nil)
	young.say(n[0].Subnet.GuestMAC(1), "to the first host")
	localPeer.mustHear("to the first host")
	if strings.Contains(a.state(), "pgt700001.0") {
		t.Errorf("the first host still has the port:\n%s", a.state())
	}
}

// If a program has the tunnels' port, the error says how to find it; when it has ended, the
// network is made.
func TestPortIsTaken(t *testing.T) {
	s := stations(t, "a")[0]
	var taken *net.UDPConn
	s.Must(func() (err error) {
		taken, err = net.ListenUDP("udp4", &net.UDPAddr{Port: DefaultPort})
		return err
	})
	job := network("j1", 1, "a", "a", "b")
	err := s.Do(func() error { return s.Apply(context.Background(), []fleet.Network{job}) })
	if err == nil || !strings.Contains(err.Error(), "UDP port 4789 is taken") || !strings.Contains(err.Error(), "`ss -ulnp sport = :4789`") {
		t.Errorf("got %v", err)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	s.apply(job)
}

// A host that has another address makes its tunnels again from there, and they stay in their
// bridges.
func TestReaddress(t *testing.T) {
	s := stations(t, "a")[0]
	job := network("j1", 1, "a", "a", "b")
	s.apply(job)
	s.Run("ip", "addr", "add", "198.18.0.77/24", "dev", testkit.UplinkName)
	s.Readdress(netip.MustParseAddr("198.18.0.77"))
	s.apply(job)
	if link := s.Run("ip", "-d", "-o", "link", "show", job.Subnet.TunnelName()); !strings.Contains(link, "local 198.18.0.77 ") || !strings.Contains(link, "master "+job.Subnet.BridgeName()) {
		t.Errorf("the tunnel is\n%s", link)
	}
	have, err := s.Read()
	if err != nil || len(have.Tunnel) == 0 {
		t.Errorf("nothing goes through it: %v, %v", have.Tunnel, err)
	}
}

// In clear, hosts with IPv6 alone carry whole frames, and a host gets another address as with IPv4.
func TestHostsWithIPv6Alone(t *testing.T) {
	all := stations(t, "a", "b")
	six := func(name string) fleet.Network {
		n := network("j1", 1, name, "a", "b")
		n.MTU = fleet.NetworkMTU6
		for i, e := range n.Endpoints {
			n.Endpoints[i].VTEP = all[strings.Index("ab", string(e.Host))].Six().String()
		}
		return n
	}
	for _, s := range all {
		s.OnlyIPv6()
		s.Readdress(s.Six())
	}
	a, b := all[0], all[1]
	na, nb := six("a"), six("b")
	a.apply(na)
	b.apply(nb)
	have, err := a.Read()
	if err != nil {
		t.Fatal(err)
	}
	if rest := Diff(have, want(t, a.config, na)); len(rest) > 0 {
		t.Errorf("applying again would change %v", rest)
	}
	first, second := a.use(na, 0), b.use(nb, 1)
	whole := strings.Repeat("x", fleet.NetworkMTU6)
	first.say(na.Subnet.GuestMAC(1), whole)
	if got := second.hear(experimental, surely); got != whole {
		t.Errorf("of a whole frame %d bytes arrive", len(got))
	}
	if parts := strings.Fields(a.Run("nstat", "-asz", "Ip6FragCreates")); parts[len(parts)-2] != "0" {
		t.Errorf("a whole frame goes in fragments: %v", parts)
	}
	b.Run("ip", "addr", "add", "2001:db8::77/64", "dev", testkit.UplinkName, "nodad")
	b.Run("ip", "addr", "del", b.Six().String()+"/64", "dev", testkit.UplinkName)
	b.Readdress(netip.MustParseAddr("2001:db8::77"))
	for i, e := range na.Endpoints {
		if e.Host == "b" {
			na.Endpoints[i].VTEP, nb.Endpoints[i].VTEP = "2001:db8::77", "2001:db8::77"
		}
	}
	a.apply(na)
	b.apply(nb)
	if link := b.Run("ip", "-d", "-o", "link", "show", nb.Subnet.TunnelName()); !strings.Contains(link, "local 2001:db8::77 ") || !strings.Contains(link, "master "+nb.Subnet.BridgeName()) {
		t.Errorf("the tunnel is\n%s", link)
	}
	first.say(na.Subnet.GuestMAC(1), "to where it is now")
	if got := second.hear(experimental, surely); got != "to where it is now" {
		t.Errorf("from the new address comes %q", got)
	}
}
