package fleet

import "time"

// PathKind is how packets go to a peer in another network.
type PathKind string

// The kinds of paths. The empty one: none is known now.
const (
	DirectPath  PathKind = "direct"
	RelayedPath PathKind = "relayed"
)

// Path is how a host reaches a peer in another network, and how well.
type Path struct {
	Kind  PathKind  `json:"kind,omitempty"`
	At    string    `json:"at,omitempty"`    // where the peer is called, IP:port
	Relay HostID    `json:"relay,omitempty"` // who relays, or was asked to
	Since time.Time `json:"since,omitzero"`  // since when it is so, by the host's clock

	NeedsRelay bool `json:"needs_relay,omitempty"` // the peer is not reached directly
	Dead       bool `json:"dead,omitempty"`        // Relay has had time, and nothing came

	Silent []HostID `json:"silent,omitempty"` // by which relays nothing came lately, the newest last

	Latency        time.Duration `json:"latency_ns,omitempty"`       // of a round trip, inside of WireGuard; 0: not measured
	Lost           float64       `json:"lost,omitempty"`             // share of the last echoes that were not answered
	BytesPerSecond float64       `json:"bytes_per_second,omitempty"` // the most that went there in a moment lately; 0: not measured
}

// RelayPort is where a host relays for two others.
type RelayPort struct {
	Hosts [2]HostID `json:"hosts"` // sorted
	Port  uint16    `json:"port"`  // UDP
}

// RelayPair are two hosts between which a host should relay what they encrypt.
type RelayPair struct {
	Hosts [2]HostID `json:"hosts"` // sorted
	Keys  [2]string `json:"keys"`  // public, by which a relay knows who says where it is
}

// WireGuardRelay is a host that relays packets to a peer.
type WireGuardRelay struct {
	Host     HostID `json:"host"`
	Endpoint string `json:"endpoint"` // IP:port
	Key      string `json:"key"`      // public
}

// Relaying is whether a host relays for others.
type Relaying string

// The choices.
const (
	RelayOn  Relaying = "on"
	RelayOff Relaying = "off"
)

// Refused says what is wrong with a choice; empty: nothing.
func (r Relaying) Refused() string {
	if r == RelayOn || r == RelayOff {
		return ""
	}
	return `write on or off`
}

// MostRelayed is how many pairs of hosts a host relays for at most. Each has a UDP port.
const MostRelayed = 64

// RelayFirstPort is the usual first of a host's MostRelayed UDP ports for relaying.
const RelayFirstPort = 7470
