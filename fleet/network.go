package fleet

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Subnet is the number of a job's private layer-2 network. All addresses follow from it,
// so that none need to be stored or negotiated. Subnets that are a multiple of MaxSubnet+1
// apart have the same addresses and are apart in all else: a job that begins again from a
// checkpoint has the addresses that it had, on a network that its earlier guests do not reach.
type Subnet uint32

// The addresses follow 10.128.0.0/9: 10.(128+S/256).(S%256).0/24 for subnet S,
// guest i at .(1+i), the job's files at .254. MaxSubnet keeps S/256 below 128.
const (
	MaxSubnet        Subnet = 1<<15 - 1
	MostSubnet       Subnet = 64<<15 - 1 // of those with the same addresses as others
	MaxGuestsPerJob         = 250
	shareLast               = 254
	firstVNI                = 0x70_0000 // VNIs 0x700000 and up are ours
	SubnetPrefixBits        = 24
)

// Again is the network with the same addresses that comes after s.
func (s Subnet) Again() Subnet { return (s + MaxSubnet + 1) % (MostSubnet + 1) }

// VNI is the VXLAN network identifier (RFC 7348).
func (s Subnet) VNI() int { return firstVNI + int(s) }

// GuestAddr is the address of guest i of the job.
func (s Subnet) GuestAddr(i int) netip.Addr { return s.addr(byte(1 + i)) }

// ShareAddr is the address at which the job's files are served.
func (s Subnet) ShareAddr() netip.Addr { return s.addr(shareLast) }

func (s Subnet) addr(last byte) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 128 + byte((s&MaxSubnet)>>8), byte(s), last})
}

// Hosts have their file clients in 10.0.0.0/9, at the host's number: a job has far more
// hosts in its life than addresses are left in its own subnet. Both ranges are private to
// the job's network.
const (
	ClientPrefixBits = 9
	mostClients      = 1<<23 - 1
)

// ClientAddr is the address of a host's file client in every job's network.
func ClientAddr(number uint32) netip.Addr {
	n := number % mostClients
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

// ClientMAC is its hardware address.
func ClientMAC(number uint32) string {
	n := number % mostClients
	return fmt.Sprintf("02:70:68:%02x:%02x:%02x", byte(n>>16), byte(n>>8), byte(n))
}

// GuestMAC is the hardware address of guest i, locally administered.
func (s Subnet) GuestMAC(i int) string { return s.mac(byte(1 + i)) }

// ShareMAC is the hardware address of the job's file server.
func (s Subnet) ShareMAC() string { return s.mac(shareLast) }

func (s Subnet) mac(last byte) string {
	return fmt.Sprintf("02:70:67:%02x:%02x:%02x", byte((s&MaxSubnet)>>8), byte(s), last)
}

// The names of a job's links on a host. Links with such names belong to Pagurus, which
// removes them when they are not wanted.

// BridgeName is the link that joins the others.
func (s Subnet) BridgeName() string { return fmt.Sprintf("pgb%06x", s.VNI()) }

// TunnelName is the VXLAN link to the other hosts.
func (s Subnet) TunnelName() string { return fmt.Sprintf("pgx%06x", s.VNI()) }

// TapName is the bridge's port for guest i: a TAP link for a virtual machine, one
// end of a pair for another guest.
func (s Subnet) TapName(i int) string { return fmt.Sprintf("pgt%06x.%d", s.VNI(), i) }

// PortPeerName is the guest's end of that pair. It is in the host's network until the
// driver moves it into the container's; for a guest of Xen it stays, and leads to its link.
func (s Subnet) PortPeerName(i int) string { return fmt.Sprintf("pgc%06x.%d", s.VNI(), i) }

// VifName is the host's end of the link to guest i, one of Xen. Xen makes and removes it.
func (s Subnet) VifName(i int) string { return fmt.Sprintf("pgv%06x.%d", s.VNI(), i) }

// PortQueueName is the link that holds frames for guest i, a container, until its driver
// releases them.
func (s Subnet) PortQueueName(i int) string { return fmt.Sprintf("pgh%06x.%d", s.VNI(), i) }

// ShareName is the bridge's end of the pair of links to the file server.
func (s Subnet) ShareName() string { return fmt.Sprintf("pgs%06x", s.VNI()) }

// SharePeerName is the file server's end of that pair. It is in the host's network until
// the server moves it into its own.
func (s Subnet) SharePeerName() string { return fmt.Sprintf("pgn%06x", s.VNI()) }

// ClientName is the bridge's end of the pair of links to the host's file client.
func (s Subnet) ClientName() string { return fmt.Sprintf("pgm%06x", s.VNI()) }

// ClientPeerName is the file client's end of that pair. It is in the host's network until
// the client moves it into its own.
func (s Subnet) ClientPeerName() string { return fmt.Sprintf("pgf%06x", s.VNI()) }

// NetworkMTU is the MTU of jobs' networks where nothing is encrypted: Ethernet's minus VXLAN's
// 50 bytes.
const NetworkMTU = 1450

// NetworkMTU6 is the same where hosts are reached by IPv6, with which VXLAN takes 70 bytes.
const NetworkMTU6 = 1430

// The priorities of the filters on a guest's port; the kernel applies the lowest first.
// Two independent packages attach filters to one port. Frames for a guest that has moved
// away must be forwarded before the frame queue here can hold them.
const (
	ForwardPriority uint16 = 1 // overlay: frames for the guest
	CutPriority     uint16 = 1 // cuts a container off: the only filter for frames it sends
	QueuePriority   uint16 = 2 // frame queue of a container: frames for it
)

// GuestName is the host name of guest i, the same in every job.
func GuestName(i int) string { return fmt.Sprintf("guest%d", i) }

// Endpoint is an address on a job's network and the host that has it.
type Endpoint struct {
	Addr  netip.Addr `json:"addr"`
	MAC   string     `json:"mac"`
	Host  HostID     `json:"host"`
	VTEP  string     `json:"vtep"`            // where VXLAN reaches Host: its IP, or its address inside WireGuard; empty if unknown
	Next  string     `json:"next,omitempty"`  // likewise of the host it moves to, until frames are sent there
	Guest GuestID    `json:"guest,omitempty"` // empty for the file server, file clients and the gateway
	Mount bool       `json:"mount,omitempty"` // it is Host's file client
	Gate  bool       `json:"gate,omitempty"`  // it is the gateway to the Internet
}

// Port is the port of a guest that is on this host, or soon will be.
type Port struct {
	Guest GuestID `json:"guest"`
	Index int     `json:"index"`
	MAC   string  `json:"mac"`
	Kind  Kind    `json:"kind,omitempty"` // kind of guest; empty: a virtual machine
}

// Network is what a host must know of one job's network.
type Network struct {
	Job       JobID      `json:"job"`
	Subnet    Subnet     `json:"subnet"`
	MTU       int        `json:"mtu,omitempty"`     // 0: NetworkMTU
	VLAN      uint16     `json:"vlan,omitempty"`    // of the hosts' cards, by which frames go; 0: they go by tunnels
	Endpoints []Endpoint `json:"endpoints"`         // all on the network, sorted by Addr
	Ports     []Port     `json:"ports,omitempty"`   // of guests on this host, sorted by Index
	Peers     []string   `json:"peers,omitempty"`   // from where frames may come: the VTEPs of the other hosts with a part of the job, also of those that a guest moves to or from
	Share     *Share     `json:"share,omitempty"`   // set on the host that serves the job's files
	Gateway   *Gateway   `json:"gateway,omitempty"` // set on the host that leads the guests to the Internet
	Mount     *Mount     `json:"mount,omitempty"`   // set on hosts whose kernel mounts the job's files for containers
}

// WholeMTU is the network's MTU.
func (n Network) WholeMTU() int { return cmp.Or(n.MTU, NetworkMTU) }

// NetworkMTU is the MTU of the job's network.
func (j Job) NetworkMTU() int { return cmp.Or(j.MTU, NetworkMTU) }

// Share is what a host serves to a job's guests.
type Share struct {
	Export string      `json:"export"` // absolute path on the host
	UID    uint32      `json:"uid"`
	GID    uint32      `json:"gid"`
	Files  []Directory `json:"files,omitempty"` // more directories
}

// Directories are all directories of the share, Export first.
func (s Share) Directories() []Directory {
	return append([]Directory{{Path: s.Export}}, s.Files...)
}

// Equal reports whether two shares are the same.
func (s Share) Equal(b Share) bool {
	return s.Export == b.Export && s.UID == b.UID && s.GID == b.GID && slices.Equal(s.Files, b.Files)
}

// Mount is a host's file client in a job's network.
type Mount struct {
	Addr netip.Addr `json:"addr"`
	MAC  string     `json:"mac"`
}

// Wanted is everything that should exist on one host. The agent creates what is missing
// and removes the rest.
type Wanted struct {
	Cluster  string    `json:"cluster"`  // agents of another cluster refuse it
	Revision int64     `json:"revision"` // of the snapshot it was computed from; older ones are ignored
	Networks []Network `json:"networks,omitempty"`

	WireGuard *WireGuard `json:"wireguard,omitempty"` // what goes to other hosts goes through it; nil: nothing is encrypted

	Guests []GuestID `json:"guests,omitempty"` // may exist here in any state; others are destroyed

	Suspended []GuestID `json:"suspended,omitempty"` // of Guests, those to suspend while the owner is present

	Policy OwnerPolicy `json:"policy,omitzero"` // what the host's owner agreed to

	IsolatedCPUs CPUSet `json:"isolated_cpus,omitempty"` // CPUs to isolate; empty: none

	VaultGrants []VaultGrant `json:"vault_grants,omitempty"` // what other hosts may do in this host's vault now, and nothing else

	Clones []JobClones `json:"clones,omitempty"` // of files on this machine; others of these jobs are removed
}
