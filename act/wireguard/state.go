package wireguard

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"pagurus/fleet"
)

// State is a device, actual or wanted. The zero State is that of no device.
type State struct {
	There   bool
	Up      bool
	MTU     int
	Address netip.Addr
	Key     string // public
	Port    uint16
	Peers   map[string]Peer // by public key
}

// Peer is another host as the device knows it.
type Peer struct {
	Address  netip.Addr // the only one that it may send from
	Endpoint string     // where it is called; empty: it calls, or Call says where
	Keep     bool       // packets are sent to it now and then, so that NAT lets it answer
}

// Verb is the kind of a Change.
type Verb string

// The verbs of a change.
const (
	makeDevice Verb = "make the device"
	setKey     Verb = "set the key"
	setLink    Verb = "set the link"
	setPeer    Verb = "set peer"
	removePeer Verb = "remove peer"
)

// Change is one step from one state to another. Key and Peer are a peer's.
type Change struct {
	Verb Verb
	Key  string
	Peer Peer
}

// String formats the change on one line.
func (c Change) String() string {
	switch c.Verb {
	case setPeer:
		return fmt.Sprintf("%s %s %s at %s", c.Verb, c.Key, c.Peer.Address, c.Peer.Endpoint)
	case removePeer:
		return fmt.Sprintf("%s %s", c.Verb, c.Key)
	}
	return string(c.Verb)
}

// Want returns the state of a device with a key and a port.
func Want(w fleet.WireGuard, end fleet.WireGuardEnd) (State, error) {
	if !w.Address.IsLinkLocalUnicast() || !w.Address.Is6() {
		return State{}, fmt.Errorf("the controller gives this host the address %q, which is not link-local: upgrade the agent or the controller, whichever is older", w.Address)
	}
	s := State{There: true, Up: true, MTU: w.MTU, Address: w.Address, Key: end.Key, Port: end.Port, Peers: map[string]Peer{}}
	for _, p := range w.Peers {
		key, err := wgtypes.ParseKey(p.Key)
		if err == nil && p.Endpoint != "" {
			_, err = netip.ParseAddrPort(p.Endpoint)
		}
		switch _, twice := s.Peers[key.String()]; {
		case err != nil:
			return State{}, fmt.Errorf("host %s has an unusable key or endpoint: %w", p.Host, err)
		case twice || key.String() == end.Key:
			return State{}, fmt.Errorf("host %s has the key of another host: remove %s on it, and start its agent again", p.Host, keyFile)
		case !p.Address.IsLinkLocalUnicast():
			return State{}, fmt.Errorf("host %s has the unusable address %q", p.Host, p.Address)
		}
		own := Peer{Address: p.Address, Endpoint: p.Endpoint}
		if len(p.Ways) > 0 {
			own.Endpoint, own.Keep = "", true
		}
		s.Peers[key.String()] = own
	}
	return s, nil
}

func (d *Device) want(w fleet.WireGuard) (State, error) {
	w.MTU = d.mtu(w)
	return Want(w, d.End())
}

// Diff returns the changes from have to want, in the order to apply them. It is pure. Peers
// that may no longer send go first.
func Diff(have, want State) []Change {
	var out []Change
	if !have.There {
		out = append(out, Change{Verb: makeDevice})
	}
	for _, key := range slices.Sorted(maps.Keys(have.Peers)) {
		if _, stays := want.Peers[key]; !stays {
			out = append(out, Change{Verb: removePeer, Key: key})
		}
	}
	if have.Key != want.Key || have.Port != want.Port {
		out = append(out, Change{Verb: setKey})
	}
	for _, key := range slices.Sorted(maps.Keys(want.Peers)) {
		has, there := have.Peers[key]
		p := want.Peers[key]
		if p.Endpoint == "" { // it calls, from where only the device knows
			has.Endpoint = ""
		}
		if !there || has != p {
			out = append(out, Change{Verb: setPeer, Key: key, Peer: p})
		}
	}
	if !have.There || have.Up != want.Up || have.MTU != want.MTU || have.Address != want.Address {
		out = append(out, Change{Verb: setLink})
	}
	return out
}
