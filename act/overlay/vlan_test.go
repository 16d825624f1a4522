package overlay

import (
	"context"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// on is a network that is a VLAN.
func on(n fleet.Network, vlan uint16) fleet.Network {
	n.VLAN = vlan
	return n
}

// A network that is a VLAN takes no tunnel, and asks nothing of a host without a card for it.
func TestWantVLAN(t *testing.T) {
	n := on(network("j1", 1, "a", "a", "a", "b"), 101)
	n.Share = &fleet.Share{Export: "/home/x"}
	n.Endpoints = append(n.Endpoints, fleet.Endpoint{Addr: n.Subnet.ShareAddr(), MAC: n.Subnet.ShareMAC(), Host: "a", VTEP: "198.18.0.1"})
	c := config("a", "fe80::1%pgw")
	if _, err := Want(c, []fleet.Network{n}); err == nil || !strings.Contains(err.Error(), "--device-net") {
		t.Errorf("without a card: %v", err)
	}
	c.Card = "ens1"
	s := want(t, c, n)
	golden(t, "vlan.txt", s.String())
}

// Frames of this host for a guest that uses a virtual function go by the card, which has the guest's address for the function alone. Of
// another VLAN the same address is nothing.
func TestWantLed(t *testing.T) {
	n := on(network("j1", 1, "a", "a", "a", "b"), 101)
	c := config("a", "fe80::1%pgw")
	c.Card, c.led = "ens1", map[ledFrames]bool{{n.Subnet.GuestMAC(0), 101}: true, {n.Subnet.GuestMAC(1), 102}: true, {"00:00:00:00:00:00", 0}: true}
	s := want(t, c, n)
	bridge, tunnel := n.Subnet.BridgeName(), n.Subnet.TunnelName()
	for i, way := range []string{tunnel, n.Subnet.TapName(1), tunnel} {
		mac := n.Subnet.GuestMAC(i)
		_, has := s.Tunnel[Key{tunnel, mac}]
		if got := s.Forward[Key{bridge, mac}]; got != way || has != (i == 1) {
			t.Errorf("frames for guest %d go by %s, not %s; the card has its address for this host: %v", i, got, way, has)
		}
	}
}

// cards gives stations a card each, on one network.
func cards(t *testing.T, all []*station) {
	t.Helper()
	all[0].Run("ip", "link", "add", "card0", "type", "veth", "peer", "name", "card0", "netns", namespaceOf(all[1]))
	for _, s := range all {
		s.Run("ip", "link", "set", "card0", "addrgenmode", "none", "up")
		s.config.Card = "card0"
	}
}

// Guests on a VLAN reach each other and no other VLAN. What a guest sends to all leaves its host, so that switches learn where it is, and
// reaches nobody. One that arrives is reached at once, and nothing is sent back for one that leaves.
func TestVLAN(t *testing.T) {
	all := stations(t, "a", "b")
	a, b := all[0], all[1]
	cards(t, all)
	na, nb := on(network("j1", 1, "a", "a", "b"), 101), on(network("j1", 1, "b", "a", "b"), 101)
	oa, ob := on(network("j2", 2, "a", "a", "b"), 102), on(network("j2", 2, "b", "a", "b"), 102)
	var lacks error
	a.Must(func() error { lacks = a.Apply(context.Background(), []fleet.Network{na, oa}); return nil })
	if errors.Is(lacks, unix.EOPNOTSUPP) {
		if !strings.Contains(lacks.Error(), "its module 8021q") {
			t.Errorf("a kernel without VLANs: %v", lacks)
		}
		t.Log("the rest was not tried, since this kernel has no VLANs")
		return
	}
	if lacks != nil {
		t.Fatal(lacks)
	}
	b.apply(nb, ob)
	have, err := a.Read()
	if err != nil {
		t.Fatal(err)
	}
	if rest := Diff(have, want(t, a.config, na, oa)); len(rest) > 0 {
		t.Errorf("applying again would change %v", rest)
	}
	if s := a.state(); !strings.Contains(s, "link pgx700001 vlan number 101 by card0 in pgb700001") || !strings.Contains(s, "tunnel pgx700001 "+na.Subnet.GuestMAC(0)+" -> \n") {
		t.Errorf("the network is\n%s", s)
	}
	first, second, other := a.use(na, 0), b.use(nb, 1), b.use(ob, 1)
	first.say(na.Subnet.GuestMAC(1), "hello")
	second.mustHear("hello")
	second.say(na.Subnet.GuestMAC(0), "hello, too")
	first.mustHear("hello, too")
	first.say(oa.Subnet.GuestMAC(1), "other job")
	other.mustNotHear(experimental)
	came := func() string {
		return b.Run("awk", `$1 == "`+nb.Subnet.TunnelName()+`:" { print $3 }`, "/proc/net/dev")
	}
	before := came()
	first.say("ff:ff:ff:ff:ff:ff", "here I am")
	second.mustNotHear(experimental)
	if came() == before {
		t.Error("what a guest sends to all does not leave its host")
	}

	// Guest 0 moves to b, whose bridge does not know yet.
	arriving := nb
	arriving.Ports = append([]fleet.Port{{Guest: "j1g0", Index: 0, MAC: nb.Subnet.GuestMAC(0)}}, nb.Ports...)
	b.apply(arriving, ob)
	there := b.use(arriving, 0)
	a.reopen() // an agent that has heard of no network yet
	a.Must(func() error { return a.Forward(1, 0) })
	second.say(na.Subnet.GuestMAC(0), "to the old place")
	first.mustHear("to the old place")
	third := on(network("j1", 1, "a", "b", "b", "a"), 101)
	a.apply(third)
	from := a.use(third, 2)
	from.say(na.Subnet.GuestMAC(0), "to the new place")
	there.mustHear("to the new place")
	b.Must(func() error { return b.Clear(context.Background()) })
	if text := b.state(); text != "" {
		t.Errorf("after Clear there is still\n%s", text)
	}
	b.Run("ip", "link", "show", "card0") // it is the host's
}

// reopen is a later agent's, which has heard of no network yet.
func (s *station) reopen() {
	s.t.Helper()
	s.Must(func() (err error) {
		if err = s.Close(); err == nil {
			s.Overlay, err = Open(s.config)
		}
		return err
	})
}

// TestForwardIsIntoTunnelsAlone: frames are forwarded by what the link to other hosts is, also before an agent has heard of its networks. A pair
// of links has a VLAN's place, which not every kernel can make.
func TestForwardIsIntoTunnelsAlone(t *testing.T) {
	s := stations(t, "a")[0]
	n := network("j1", 1, "a", "a", "b")
	s.apply(n)
	s.use(n, 0)
	forwards := func() bool {
		return strings.Contains(s.Run("tc", "filter", "show", "dev", n.Subnet.TapName(0), "egress"), "forward")
	}
	for _, tunnel := range []bool{true, false} {
		if !tunnel {
			s.Run("ip", "link", "del", n.Subnet.TunnelName())
			s.Run("ip", "link", "add", n.Subnet.TunnelName(), "type", "veth", "peer", "name", "other")
		}
		s.reopen()
		s.Must(func() error { return s.Forward(1, 0) })
		if forwards() != tunnel {
			t.Errorf("with a tunnel %v: frames are forwarded %v", tunnel, !tunnel)
		}
		s.Must(func() error { return s.Deliver(1, 0) })
	}
	s.Run("ip", "link", "del", n.Subnet.TunnelName())
	if err := s.Do(func() error { return s.Forward(1, 0) }); err == nil {
		t.Error("frames are forwarded, where to is not known")
	}
}

// TestSteeredLeavesNetworks: an agent that begins, and leads frames before it has heard of the jobs' networks, removes none of an earlier agent's.
func TestSteeredLeavesNetworks(t *testing.T) {
	s := stations(t, "a")[0]
	n := network("j1", 1, "a", "a", "b")
	s.apply(n)
	s.use(n, 0)
	s.reopen()
	s.Must(func() error { return s.Steered(t.Context()) })
	for _, link := range []string{n.Subnet.BridgeName(), n.Subnet.TunnelName(), n.Subnet.TapName(0)} {
		s.Run("ip", "link", "show", "dev", link)
	}
}
