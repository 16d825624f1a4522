package fleet

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"path"
)

// Encryption says how traffic between a cluster's hosts is protected. What is chosen for the
// cluster is stored; a host may choose what it uses of that.
type Encryption string

// The choices. The empty one is that of a store from before there was a choice: none.
const (
	AutoEncryption Encryption = "auto"      // WireGuard: by the kernel where it can, else by wireguard-go
	WireGuardOnly  Encryption = "wireguard" // WireGuard by the kernel alone
	NoEncryption   Encryption = "none"
)

// Encryptions are the choices, for people.
var Encryptions = []Encryption{AutoEncryption, WireGuardOnly, NoEncryption}

// On reports whether traffic is encrypted.
func (e Encryption) On() bool { return e == AutoEncryption || e == WireGuardOnly }

// Refused says what is wrong with a choice; empty: nothing.
func (e Encryption) Refused() string {
	for _, known := range Encryptions {
		if e == known {
			return ""
		}
	}
	return fmt.Sprintf("%q is not a way to encrypt; write %s, %s or %s", string(e), AutoEncryption, WireGuardOnly, NoEncryption)
}

// Protection names what encrypts on a host, for people and for programs.
type Protection string

// What may encrypt.
const (
	KernelWireGuard Protection = "wireguard kernel" // the kernel's module
	UserWireGuard   Protection = "wireguard-go"     // a process of the host
	Unprotected     Protection = "none"
)

// WireGuardPort is the usual UDP port of a host's WireGuard device.
const WireGuardPort = 7462

// The sizes of packets, in bytes. An Ethernet carries 1500; WireGuard adds at most 80 to a packet (by
// IPv6), and VXLAN 70 to a guest's frame, as the addresses inside are of IPv6. All hosts of a
// cluster have the same sizes for guests, so that a guest never has to change its own.
const (
	WireGuardAdds       = 80
	WireGuardMTU        = 1500 - WireGuardAdds
	EncryptedNetworkMTU = WireGuardMTU - 70
)

// GuestMTU is the MTU of the network of a job that starts now, on hosts of which one is reached by IPv6 or none is; 0: NetworkMTU.
func (e Encryption) GuestMTU(by6 bool) int {
	switch {
	case e.On():
		return EncryptedNetworkMTU
	case by6:
		return NetworkMTU6
	}
	return 0
}

// WireGuardLink names the WireGuard device of a host with a folder for what outlives its agent. The name
// differs between the hosts of a machine, since wireguard-go of each has a socket of that name in one folder.
func WireGuardLink(run string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(path.Clean(run))) // never fails
	return fmt.Sprintf("pgw%08x", h.Sum32())
}

// WireGuardSocket is that socket, by which wireguard-go is configured.
func WireGuardSocket(link string) string { return "/var/run/wireguard/" + link + ".sock" }

// WireGuardEnd is what other hosts must know of a host's WireGuard device. Its private key
// is on its host only.
type WireGuardEnd struct {
	Key  string `json:"key"`  // public, as WireGuard's tools print it
	Port uint16 `json:"port"` // UDP, at the host's address
}

// WireGuardFacts is what an agent reports about its WireGuard device.
type WireGuardFacts struct {
	WireGuardEnd
	By      Protection `json:"by,omitempty"`      // what the device is; empty: there is none now
	Trouble string     `json:"trouble,omitempty"` // why the host cannot encrypt, and what to do, for people

	Mapped  []string        `json:"mapped,omitempty"`  // the device's port as others see it behind NAT, IP:port
	Relays  bool            `json:"relays,omitempty"`  // the host relays for others, if it is asked to
	Relayed []RelayPort     `json:"relayed,omitempty"` // where it does
	Paths   map[HostID]Path `json:"paths,omitempty"`   // to peers in other networks
}

// WireGuard is what a host's WireGuard device should be.
type WireGuard struct {
	Address    netip.Addr      `json:"address"`               // of this host inside
	MTU        int             `json:"mtu"`                   // the least; more where links to all peers carry more
	KernelOnly bool            `json:"kernel_only,omitempty"` // wireguard-go is not good enough
	Peers      []WireGuardPeer `json:"peers,omitempty"`       // hosts to exchange packets with, sorted by Host
	Relays     []RelayPair     `json:"relays,omitempty"`      // for whom this host relays
}

// WireGuardPeer is another host.
type WireGuardPeer struct {
	Host     HostID     `json:"host"`
	Key      string     `json:"key"`
	Address  netip.Addr `json:"address"`            // inside; packets with another are dropped
	Endpoint string     `json:"endpoint,omitempty"` // where it is called, IP:port; may change; empty: unknown, it calls

	Ways  []string        `json:"ways,omitempty"`  // of one in another network: where it may be reached, best first; the agent finds out which of them works
	Relay *WireGuardRelay `json:"relay,omitempty"` // by whom it is reached, if by none of these; nil: nobody relays
}

// WireGuardAddr is a host's address inside, which follows from its number. It is a link-local
// address of IPv6. The kernel takes such an address to be the host's on one link only: a packet
// for it that comes by any other link is for nobody, and a socket that is bound to it is bound
// to the link. So no firewall rule has to keep others away from what listens there. It needs no range
// of addresses, and so meets no other network. Not valid for 0, the number of no host.
func WireGuardAddr(number uint32) netip.Addr {
	if number == 0 {
		return netip.Addr{}
	}
	b := [16]byte{0: 0xfe, 1: 0x80}
	for i := range 4 {
		b[12+i] = byte(number >> (24 - 8*i))
	}
	return netip.AddrFrom16(b)
}
