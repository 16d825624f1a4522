package overlay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"sort"
	"strings"

	"pagurus/fleet"
)

// State is the jobs' networks on one host, actual or wanted.
type State struct {
	Links      map[string]Link
	Forward    map[Key]string // bridge and MAC → name of the port for its frames
	Tunnel     map[Key]string // VXLAN link and MAC → address of its host; VLAN link and MAC that its card has for this host → nothing
	Neighbours map[Key]string // bridge and IP address → the MAC for ARP answers
	Arrivals   map[Key]string // VXLAN link and MAC → name of the port for frames from the tunnel
	GateIn     map[Key]string // link to other hosts → what it lets in, a Gate's text
	GateOut    map[Key]string // link to other hosts → the UDP port to which it lets only our tunnels send
}

// Key is a link's name and an address on it.
type Key struct{ Link, Addr string }

// Kind is the kernel's type of a link.
type Kind string

// The kinds of our links.
const (
	bridgeKind Kind = "bridge"
	tunnelKind Kind = "vxlan"
	vlanKind   Kind = "vlan" // of the host's card, in a tunnel's place
	tapKind    Kind = "tun"
	pairKind   Kind = "veth"
)

// Link is the relevant part of a link. Zero values are safe: a set flag permits
// something.
type Link struct {
	Kind    Kind
	Master  string
	MTU     int
	Up      bool
	SelfV6  bool // gives itself an IPv6 address and announces it
	Hooks   bool // filters can be attached
	Tags    bool // its frames are tagged, as the gate wants it
	Bridge  Bridge
	Tunnel  Tunnel
	Port    Port
	HasPort bool   // Port is valid: it is a port of a bridge
	PeerMAC string // of a pair's other end, set when the pair is made and not read back
}

// Bridge is a bridge's behaviour beyond its table.
type Bridge struct {
	STP      bool
	Snooping bool // of multicast
	ToHost   bool // frames for the bridge itself, and broadcasts, reach the host
}

// Tunnel is the fixed properties of a VXLAN link, or of a VLAN link with VNI for its VLAN and Lower for its card.
type Tunnel struct {
	VNI      int
	Local    string
	Lower    string // the link that its frames take; empty: as the routes are
	Port     uint16
	Learning bool
	Default  string // where frames without an entry are sent
}

// Port is what a bridge's port permits.
type Port struct {
	Learning     bool
	Unknown      bool // frames for an unknown address are sent out
	Multicast    bool // likewise
	Broadcast    bool // likewise
	Hairpin      bool // frames may be sent back out by the port they came from
	Suppress     bool // ARP from other ports is not sent out, and is answered if its entry leads here
	AnswerARP    bool // ARP from it is answered from Neighbours
	GroupForward uint16
}

// everyGroup treats the link-local groups 01:80:c2:00:00:0x as other multicast: they are
// dropped. Otherwise the host's own stack would get such frames, with any IP packet that
// a guest put into them. The kernel allows all but PAUSE, which it drops itself.
const everyGroup = 0xfffd

// The parts of a network differ only in the frames that they send out.
var (
	guestPort  = Port{AnswerARP: true, GroupForward: everyGroup}
	tunnelPort = Port{Suppress: true, GroupForward: everyGroup}
	// Switches behind a card learn where a guest is from what it sends: QEMU has it announced as it arrives, to all.
	vlanPort = Port{Broadcast: true, Suppress: true, GroupForward: everyGroup}
)

var (
	ours      = regexp.MustCompile(`^pg[bxtsnchmfg][0-9a-f]{6}(\.\d+)?$`)
	followers = regexp.MustCompile(`^(pg[nf][0-9a-f]{6}|pg[ch][0-9a-f]{6}\.\d+)$`)
)

// leads maps a link's name prefix to the link that it is made and removed with: the other
// end of its pair, or the port that it queues for.
var leads = map[string]struct {
	lead string
	kind Kind // of the dependent link
}{"pgn": {"pgs", pairKind}, "pgf": {"pgm", pairKind}, "pgc": {"pgt", pairKind}, "pgh": {"pgt", tapKind}}

func newState() State {
	return State{Links: map[string]Link{}, Forward: map[Key]string{}, Tunnel: map[Key]string{}, Neighbours: map[Key]string{}, Arrivals: map[Key]string{},
		GateIn: map[Key]string{}, GateOut: map[Key]string{}}
}

// Want returns the state of these networks on the host of c. Invalid parts are left out
// and reported in the error.
func Want(c Config, networks []fleet.Network) (State, error) {
	s := newState()
	var wrong []error
	for _, n := range networks {
		err := c.lacksCard(n)
		if err == nil {
			err = s.addNetwork(c, n)
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("network of job %s: %w", n.Job, err))
		}
	}
	s.wantGate(c, networks)
	return s, errors.Join(wrong...)
}

// lacksCard returns an error if a network is a VLAN, and this host has no card for it.
func (c Config) lacksCard(n fleet.Network) error {
	if n.VLAN != 0 && c.Card == "" {
		return fmt.Errorf("it is VLAN %d, and this host has no card for it: give the agent --%s", n.VLAN, fleet.DeviceNetFlag)
	}
	return nil
}

func (s State) addNetwork(c Config, n fleet.Network) error {
	if n.Subnet > fleet.MostSubnet {
		return fmt.Errorf("subnet %d is above %d", n.Subnet, fleet.MostSubnet)
	}
	bridge, tunnel, mtu := n.Subnet.BridgeName(), n.Subnet.TunnelName(), n.WholeMTU()
	s.Links[bridge] = Link{Kind: bridgeKind, MTU: mtu, Up: true, Hooks: true}
	s.Links[tunnel] = c.wayOut(n)
	local := map[fleet.GuestID]string{}
	for _, p := range n.Ports {
		if err := s.addPort(n, p); err != nil {
			return err
		}
		local[p.Guest] = n.Subnet.TapName(p.Index)
	}
	if n.Share != nil {
		share := n.Subnet.ShareName()
		local[""] = share
		s.Links[share] = Link{Kind: pairKind, Master: bridge, MTU: mtu, Up: true, Port: guestPort, HasPort: true}
	}
	if n.Gateway != nil {
		s.Links[n.Subnet.GatewayName()] = Link{Kind: tapKind, Master: bridge, MTU: mtu, Up: true, Hooks: true, Port: guestPort, HasPort: true}
	}
	if n.Mount != nil {
		s.Links[n.Subnet.ClientName()] = Link{Kind: pairKind, Master: bridge, MTU: mtu, Up: true, Port: guestPort, HasPort: true}
	}
	var wrong []error
	for _, e := range n.Endpoints {
		mac, err := net.ParseMAC(e.MAC)
		if err != nil || len(mac) != 6 || mac[0]&1 != 0 || !e.Addr.Is4() {
			wrong = append(wrong, fmt.Errorf("endpoint %s has the unusable hardware address %q", e.Addr, e.MAC))
			continue
		}
		s.Neighbours[Key{bridge, e.Addr.String()}] = mac.String()
		if next, ok := c.reached(e.Next); ok && n.VLAN == 0 && next != c.Address.WithZone("") && e.Host == c.Host {
			s.Tunnel[Key{tunnel, mac.String()}] = next.String() // for frames that Forward sends
		}
		port, here := local[e.Guest]
		switch { // these never move
		case e.Mount:
			port, here = n.Subnet.ClientName(), n.Mount != nil && e.Host == c.Host
		case e.Gate:
			port, here = n.Subnet.GatewayName(), n.Gateway != nil && e.Host == c.Host
		}
		if e.Host == c.Host {
			s.addOwn(c, n, mac.String(), port, here)
			continue
		}
		if here { // it will arrive, or has left and some hosts do not know yet
			s.Arrivals[Key{tunnel, mac.String()}] = port
		}
		// The tunnel drops frames for an unknown host. ARP is still answered, so that
		// senders retry instead of reporting an unreachable host.
		s.Forward[Key{bridge, mac.String()}] = tunnel
		if n.VLAN != 0 {
			continue // switches know where it is
		}
		if vtep, ok := c.reached(e.VTEP); ok {
			s.Tunnel[Key{tunnel, mac.String()}] = vtep.String()
		} else if e.VTEP != "" {
			wrong = append(wrong, fmt.Errorf("host %s has the unusable address %q", e.Host, e.VTEP))
		}
	}
	return errors.Join(wrong...)
}

// addOwn adds the way of frames for an endpoint of this host, which is at a port if that is here.
func (s State) addOwn(c Config, n fleet.Network, mac, port string, here bool) {
	bridge, tunnel := n.Subnet.BridgeName(), n.Subnet.TunnelName()
	switch {
	case c.led[ledFrames{mac, n.VLAN}]: // the guest drops what comes by its port
		s.Forward[Key{bridge, mac}] = tunnel
	case here:
		s.Forward[Key{bridge, mac}] = port
		if n.VLAN != 0 { // virtual functions of the same card find it
			s.Tunnel[Key{tunnel, mac}] = ""
		}
	}
}

// wayOut is the link by which frames reach other hosts.
func (c Config) wayOut(n fleet.Network) Link {
	l := Link{Kind: tunnelKind, Master: n.Subnet.BridgeName(), MTU: n.WholeMTU(), Up: true, Hooks: true, Tags: c.Address.Zone() != "", Port: tunnelPort, HasPort: true,
		Tunnel: Tunnel{VNI: n.Subnet.VNI(), Local: c.Address.WithZone("").String(), Lower: c.Address.Zone(), Port: c.Port}}
	if n.VLAN != 0 {
		l.Kind, l.Tags, l.Port, l.Tunnel = vlanKind, false, vlanPort, Tunnel{VNI: int(n.VLAN), Lower: c.Card}
	}
	return l
}

// addPort adds a guest's port.
func (s State) addPort(n fleet.Network, p fleet.Port) error {
	if p.Index < 0 || p.Index >= fleet.MaxGuestsPerJob {
		return fmt.Errorf("guest %s has the impossible index %d", p.Guest, p.Index)
	}
	if p.Kind != "" && !p.Kind.Known() {
		return fmt.Errorf("guest %s is a %q, which this agent has no port for", p.Guest, p.Kind)
	}
	port := Link{Kind: tapKind, Master: n.Subnet.BridgeName(), MTU: n.WholeMTU(), Up: true, Hooks: true, Port: guestPort, HasPort: true}
	if !p.Kind.Traits().Tap {
		port.Kind, port.PeerMAC = pairKind, n.Subnet.GuestMAC(p.Index)
	}
	s.Links[n.Subnet.TapName(p.Index)] = port
	return nil
}

// reached is the address of another host's tunnels, if it can be reached from this host's: both
// are inside WireGuard, or neither is, and both are of one family.
func (c Config) reached(at string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(at)
	inside := func(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }
	return a, err == nil && a.Zone() == "" && !a.Is4In6() && a.Is4() == c.Address.Is4() && inside(a) == inside(c.Address)
}

// String formats the state, sorted, one line for each entry.
func (s State) String() string {
	var b strings.Builder
	for _, name := range sorted(s.Links) {
		fmt.Fprintf(&b, "link %s %s\n", name, s.Links[name])
	}
	for _, table := range []struct {
		name    string
		entries map[Key]string
	}{{"forward", s.Forward}, {"tunnel", s.Tunnel}, {"neighbour", s.Neighbours}, {"arrival", s.Arrivals}, {inName, s.GateIn}, {outName, s.GateOut}} {
		for _, k := range sortedKeys(table.entries) {
			fmt.Fprintf(&b, "%s %s -> %s\n", table.name, strings.TrimSpace(k.Link+" "+k.Addr), table.entries[k])
		}
	}
	return b.String()
}

// String formats the link on one line, without unset flags.
func (l Link) String() string {
	words := []string{string(l.Kind)}
	say := func(on bool, format string, args ...any) {
		if on {
			words = append(words, fmt.Sprintf(format, args...))
		}
	}
	say(l.Kind == tunnelKind, "vni %#x local %s port %d", l.Tunnel.VNI, l.Tunnel.Local, l.Tunnel.Port)
	say(l.Kind == vlanKind, "number %d", l.Tunnel.VNI)
	say(l.Tunnel.Lower != "", "by %s", l.Tunnel.Lower)
	say(l.Tunnel.Default != "", "default %s", l.Tunnel.Default)
	say(l.Tunnel.Learning, "tunnel-learning")
	say(l.Master != "", "in %s", l.Master)
	say(true, "mtu %d", l.MTU)
	say(l.Up, "up")
	say(l.PeerMAC != "", "to %s", l.PeerMAC)
	say(l.SelfV6, "self-v6")
	say(l.Hooks, "hooks")
	say(l.Tags, "tags")
	say(l.Bridge.STP, "stp")
	say(l.Bridge.Snooping, "snooping")
	say(l.Bridge.ToHost, "to-host")
	if l.HasPort {
		say(l.Port.Learning, "learning")
		say(l.Port.Unknown, "unknown")
		say(l.Port.Multicast, "multicast")
		say(l.Port.Broadcast, "broadcast")
		say(l.Port.Hairpin, "hairpin")
		say(l.Port.Suppress, "suppress")
		say(l.Port.AnswerARP, "answer-arp")
		say(l.Port.GroupForward != 0, "group-forward %#x", l.Port.GroupForward)
	}
	return strings.Join(words, " ")
}

func sorted(m map[string]Link) []string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func sortedKeys(m map[Key]string) []Key {
	var keys []Key
	for k := range m {
		keys = append(keys, k)
	}
	sort.Slice(keys, func(i, j int) bool {
		if keys[i].Link != keys[j].Link {
			return keys[i].Link < keys[j].Link
		}
		return keys[i].Addr < keys[j].Addr
	})
	return keys
}
