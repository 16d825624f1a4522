package overlay

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

const ipv4 = 0x0800 // an EtherType

// by is a network whose hosts are reached at link-local addresses, with the MTU of encrypted ones.
func by(n fleet.Network) fleet.Network {
	n.MTU = fleet.EncryptedNetworkMTU
	for i, e := range n.Endpoints {
		if e.VTEP != "" {
			n.Endpoints[i].VTEP = "fe80::" + e.VTEP[len(e.VTEP)-1:]
		}
	}
	return n
}

// lower gives the stations a second link to each other, as a WireGuard device is one, and has their
// tunnels take it.
func lower(t *testing.T, all []*station) {
	t.Helper()
	all[0].Run("ip", "link", "add", "low0", "mtu", fmt.Sprint(fleet.WireGuardMTU), "type", "veth", "peer", "name", "low0", "mtu", fmt.Sprint(fleet.WireGuardMTU), "netns", namespaceOf(all[1]))
	for i, s := range all {
		s.Run("ip", "link", "set", "low0", "addrgenmode", "none", "up")
		at := fmt.Sprintf("fe80::%d", i+1)
		s.Run("ip", "addr", "add", at+"/64", "dev", "low0", "nodad")
		s.Readdress(config("x", at+"%low0").Address)
	}
}

func namespaceOf(s *station) string { return "/run/netns/" + s.Namespace }

// Tunnels that take one link carry whole frames, and take in none by another link, whoever sent it to
// whatever address.
func TestTunnelsTakeOneLink(t *testing.T) {
	all := stations(t, "a", "b")
	a, b := all[0], all[1]
	lower(t, all)
	na, nb := by(network("j1", 1, "a", "a", "b")), by(network("j1", 1, "b", "a", "b"))
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
	whole := strings.Repeat("x", fleet.EncryptedNetworkMTU)
	first.say(na.Subnet.GuestMAC(1), whole)
	if got := second.hear(experimental, surely); got != whole {
		t.Errorf("of a whole frame %d bytes arrive", len(got))
	}
	// A neighbour on the hosts' network has the same addresses, the same number and the same port.
	evil := "ip link add evil type vxlan id 7340033 dstport 4789 nolearning local %s %s; ip link set evil up; bridge fdb add " + nb.Subnet.GuestMAC(1) + " dev evil dst %s self permanent %s"
	hardware := ""
	b.Must(func() error {
		link, err := net.InterfaceByName(testkit.UplinkName)
		if err == nil {
			hardware = link.HardwareAddr.String()
		}
		return err
	})
	count := func(s *station, link, field string) string {
		return strings.TrimSpace(s.Run("awk", "$1 == \""+link+":\" { print $"+field+" }", "/proc/net/dev"))
	}
	const took, sent = "3", "11" // packets
	heardBy := func() string { return count(b, nb.Subnet.TunnelName(), took) }
	for _, way := range []struct{ local, dev, to, by string }{
		{a.Addr.String(), "", b.Addr.String(), ""},
		{"fe80::77", "dev eth0", "fe80::2", "via eth0"},
		{"fe80::1", "dev eth0", "fe80::2", "via eth0"},
	} {
		a.Run("ip", "link", "del", na.Subnet.TunnelName())
		if way.dev != "" {
			a.Run("ip", "addr", "replace", way.local+"/64", "dev", testkit.UplinkName, "nodad")
			a.Run("ip", "neigh", "replace", way.to, "lladdr", hardware, "dev", testkit.UplinkName)
		}
		a.Run("sh", "-ec", fmt.Sprintf(evil, way.local, way.dev, way.to, way.by))
		before := heardBy()
		a.Run("sh", "-ec", "ip addr add 10.99.0.1/24 dev evil; ip neigh add 10.99.0.2 lladdr "+nb.Subnet.GuestMAC(1)+" dev evil nud permanent; ping -c3 -i0.2 -W1 10.99.0.2 || true")
		if heard := second.hear(ipv4, 200*time.Millisecond); heard != "" || heardBy() != before {
			t.Errorf("from %s by %s: the guest hears %q, its tunnel took in %s frames before and %s after", way.local, way.by, heard, before, heardBy())
		}
		if n := count(a, "evil", sent); n == "0" || n == "" {
			t.Errorf("from %s nothing was sent, so this shows nothing", way.local)
		}
		a.Run("ip", "link", "del", "evil")
		a.apply(na)
	}
	first.say(na.Subnet.GuestMAC(1), "still")
	if got := second.hear(experimental, surely); got != "still" {
		t.Errorf("afterwards the guest hears %q", got)
	}
}

// Without encryption the same frame arrives: it is the link that keeps it away.
func TestTunnelsByAnyLinkTakeInForeignFrames(t *testing.T) {
	all := stations(t, "a", "b")
	a, b := all[0], all[1]
	nb := network("j1", 1, "b", "a", "b")
	b.apply(nb)
	second := b.use(nb, 1)
	a.Run("sh", "-ec", "ip link add evil type vxlan id 7340033 dstport 4789 nolearning; ip link set evil up; bridge fdb add "+nb.Subnet.GuestMAC(1)+" dev evil dst "+b.Addr.String()+" self permanent")
	a.Run("sh", "-ec", "ip addr add 10.99.0.1/24 dev evil; ip neigh add 10.99.0.2 lladdr "+nb.Subnet.GuestMAC(1)+" dev evil nud permanent; ping -c3 -i0.2 -W1 10.99.0.2 || true")
	if second.hear(ipv4, surely) == "" {
		t.Error("the test's foreign frame is none that a tunnel could take in")
	}
}

// Hosts that are not inside with this one are not reached.
func TestOnlyOneKindOfAddress(t *testing.T) {
	n := network("j1", 1, "a", "a", "b")
	if s, err := Want(config("a", "fe80::1%low0"), []fleet.Network{n}); err == nil || len(s.Tunnel) > 0 {
		t.Errorf("from inside, hosts outside are reached: %v, %v", s.Tunnel, err)
	}
	if s, err := Want(config("a", "198.18.0.1"), []fleet.Network{by(n)}); err == nil || len(s.Tunnel) > 0 {
		t.Errorf("from outside, hosts inside are reached: %v, %v", s.Tunnel, err)
	}
	for _, address := range []string{"fe80::1", "2001:db8::1%low0", "::ffff:198.18.0.1"} {
		if _, err := Open(config("a", address)); err == nil {
			t.Errorf("tunnels end at %s", address)
		}
	}
}
