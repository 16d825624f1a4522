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

// State is the jobs' networks on one host, as they are or as they should be.
type State struct {
	Links      map[string]Link
	Forward    map[Key]string // bridge and MAC → name of the port frames for it leave by
	Tunnel     map[Key]string // VXLAN link and MAC → address of the host they are sent to
	Neighbours map[Key]string // bridge and IP address → the MAC that ARP is answered with
	Arrivals   map[Key]string // VXLAN link and MAC → name of the port that frames which come by the tunnel go to
}

// Key is a link's name and an address on it.
type Key struct{ Link, Addr string }

// Kind is what sort of link the kernel says it is.
type Kind string

// The kinds of link that are ours.
const (
	bridgeKind Kind = "bridge"
	tunnelKind Kind = "vxlan"
	tapKind    Kind = "tun"
	pairKind   Kind = "veth"
)

// Link is all that matters of a link. Its zero values are the quiet ones: a
// flag that is set lets something happen.
type Link struct {
	Kind    Kind
	Master  string
	MTU     int
	Up      bool
	SelfV6  bool // gives itself an IPv6 address and speaks with it
	Hooks   bool // filters can be hung on it
	Bridge  Bridge
	Tunnel  Tunnel
	Port    Port
	HasPort bool   // Port counts: it is a port of some bridge
	PeerMAC string // of a pair's other end, given to it when the pair is made and not looked at again
}

// Bridge is what a bridge may do beyond forwarding by its table.
type Bridge struct {
	STP      bool
	Snooping bool // of multicast
	ToHost   bool // frames for the bridge itself, and broadcasts, reach the host
}

// Tunnel is what a VXLAN link is born with.
type Tunnel struct {
	VNI      int
	Local    string
	Port     uint16
	Learning bool
	Default  string // where frames go that have no entry
}

// Port is what a bridge's port may do.
type Port struct {
	Learning     bool
	Unknown      bool // frames for an unknown address leave by it
	Multicast    bool // likewise
	Broadcast    bool // likewise
	Hairpin      bool // frames may leave by the port they came in by
	Suppress     bool // ARP that came in elsewhere does not leave by it, and is answered if its entry leads here
	AnswerARP    bool // ARP that comes in by it is answered from Neighbours
	GroupForward uint16
}

// everyGroup forwards the link-local groups 01:80:c2:00:00:0x like any other
// multicast, that is nowhere. Otherwise the host's own stack would be handed
// such frames, with whatever IP packet a guest has put into them. The kernel
// allows all but PAUSE, which it drops itself.
const everyGroup = 0xfffd

// The parts of a network differ only in what leaves by them.
var (
	guestPort  = Port{AnswerARP: true, GroupForward: everyGroup}
	tunnelPort = Port{Suppress: true, GroupForward: everyGroup}
)

var (
	ours      = regexp.MustCompile(`^pg[bxtsnch][0-9a-f]{6}(\.\d+)?$`)
	followers = regexp.MustCompile(`^(pgn[0-9a-f]{6}|pg[ch][0-9a-f]{6}\.\d+)$`)
)

// leads says which link another comes and goes with, by what their names begin
// with: the other end of its pair, or the port whose frames wait in it.
var leads = map[string]struct {
	lead string
	kind Kind // of the one that follows
}{"pgn": {"pgs", pairKind}, "pgc": {"pgt", pairKind}, "pgh": {"pgt", tapKind}}

func newState() State {
	return State{Links: map[string]Link{}, Forward: map[Key]string{}, Tunnel: map[Key]string{}, Neighbours: map[Key]string{}, Arrivals: map[Key]string{}}
}

// Want gives the state that these networks mean on the host of c. What makes
// no sense is left out and is in the error.
func Want(c Config, networks []fleet.Network) (State, error) {
	s := newState()
	var wrong []error
	for _, n := range networks {
		if err := s.addNetwork(c, n); err != nil {
			wrong = append(wrong, fmt.Errorf("network of job %s: %w", n.Job, err))
		}
	}
	return s, errors.Join(wrong...)
}

func (s State) addNetwork(c Config, n fleet.Network) error {
	if n.Subnet > fleet.MaxSubnet {
		return fmt.Errorf("subnet %d is above %d", n.Subnet, fleet.MaxSubnet)
	}
	bridge, tunnel := n.Subnet.BridgeName(), n.Subnet.TunnelName()
	s.Links[bridge] = Link{Kind: bridgeKind, MTU: fleet.NetworkMTU, Up: true, Hooks: true}
	s.Links[tunnel] = Link{Kind: tunnelKind, Master: bridge, MTU: fleet.NetworkMTU, Up: true, Hooks: true, Port: tunnelPort, HasPort: true,
		Tunnel: Tunnel{VNI: n.Subnet.VNI(), Local: c.Address.String(), Port: c.Port}}
	local := map[fleet.GuestID]string{}
	for _, p := range n.Ports {
		if p.Index < 0 || p.Index >= fleet.MaxGuestsPerJob {
			return fmt.Errorf("guest %s has the impossible index %d", p.Guest, p.Index)
		}
		port := Link{Kind: tapKind, Master: bridge, MTU: fleet.NetworkMTU, Up: true, Hooks: true, Port: guestPort, HasPort: true}
		if p.Kind != "" && !p.Kind.Known() {
			return fmt.Errorf("guest %s is a %q, which this agent has no port for", p.Guest, p.Kind)
		}
		if !p.Kind.Traits().Tap {
			port.Kind, port.PeerMAC = pairKind, n.Subnet.GuestMAC(p.Index)
		}
		tap := n.Subnet.TapName(p.Index)
		local[p.Guest] = tap
		s.Links[tap] = port
	}
	if n.Share != nil {
		share := n.Subnet.ShareName()
		local[""] = share
		s.Links[share] = Link{Kind: pairKind, Master: bridge, MTU: fleet.NetworkMTU, Up: true, Port: guestPort, HasPort: true}
	}
	var wrong []error
	for _, e := range n.Endpoints {
		mac, err := net.ParseMAC(e.MAC)
		if err != nil || len(mac) != 6 || mac[0]&1 != 0 || !e.Addr.Is4() {
			wrong = append(wrong, fmt.Errorf("endpoint %s has the unusable hardware address %q", e.Addr, e.MAC))
			continue
		}
		s.Neighbours[Key{bridge, e.Addr.String()}] = mac.String()
		if next, err := netip.ParseAddr(e.Next); err == nil && next.Is4() && next != c.Address && e.Host == c.Host {
			s.Tunnel[Key{tunnel, mac.String()}] = next.String() // for what Forward leads there
		}
		port, here := local[e.Guest]
		if e.Host == c.Host {
			if here {
				s.Forward[Key{bridge, mac.String()}] = port
			}
			continue
		}
		if here { // it is to arrive, or has left and not everybody knows
			s.Arrivals[Key{tunnel, mac.String()}] = port
		}
		// Frames for a host that is not heard of are dropped by the tunnel,
		// but ARP is answered all the same: senders then try again instead
		// of being told that there is nobody.
		s.Forward[Key{bridge, mac.String()}] = tunnel
		if vtep, err := netip.ParseAddr(e.VTEP); err == nil && vtep.Is4() {
			s.Tunnel[Key{tunnel, mac.String()}] = vtep.String()
		} else if e.VTEP != "" {
			wrong = append(wrong, fmt.Errorf("host %s has the unusable address %q", e.Host, e.VTEP))
		}
	}
	return errors.Join(wrong...)
}

// String is the state as text, a line for each thing, sorted.
func (s State) String() string {
	var b strings.Builder
	for _, name := range sorted(s.Links) {
		fmt.Fprintf(&b, "link %s %s\n", name, s.Links[name])
	}
	for _, table := range []struct {
		name    string
		entries map[Key]string
	}{{"forward", s.Forward}, {"tunnel", s.Tunnel}, {"neighbour", s.Neighbours}, {"arrival", s.Arrivals}} {
		for _, k := range sortedKeys(table.entries) {
			fmt.Fprintf(&b, "%s %s %s -> %s\n", table.name, k.Link, k.Addr, table.entries[k])
		}
	}
	return b.String()
}

// String is the link on one line; flags that are off are not named.
func (l Link) String() string {
	words := []string{string(l.Kind)}
	say := func(on bool, format string, args ...any) {
		if on {
			words = append(words, fmt.Sprintf(format, args...))
		}
	}
	say(l.Kind == tunnelKind, "vni %#x local %s port %d", l.Tunnel.VNI, l.Tunnel.Local, l.Tunnel.Port)
	say(l.Tunnel.Default != "", "default %s", l.Tunnel.Default)
	say(l.Tunnel.Learning, "tunnel-learning")
	say(l.Master != "", "in %s", l.Master)
	say(true, "mtu %d", l.MTU)
	say(l.Up, "up")
	say(l.PeerMAC != "", "to %s", l.PeerMAC)
	say(l.SelfV6, "self-v6")
	say(l.Hooks, "hooks")
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
