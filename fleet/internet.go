package fleet

import (
	"fmt"
	"net/netip"
)

// Reach is what the guests of a job reach beside each other and the job's files.
type Reach string

// What guests may reach. The empty one is JobOnly.
const (
	JobOnly  Reach = "job"      // nothing else
	Internet Reach = "internet" // public addresses of the Internet, through a gateway
)

// Reaches are the words for people, the usual one first.
var Reaches = []string{string(JobOnly), string(Internet)}

// Refused says what is wrong with r; empty: nothing.
func (r Reach) Refused() string {
	if r == "" || r == JobOnly || r == Internet {
		return ""
	}
	return fmt.Sprintf("guests cannot reach %q; use --"+NetFlag+" %s", r, Enumerate(Reaches, "or"))
}

// Outward reports whether guests of the job may have connections to the outside. A host keeps their other ends, not a
// guest: so they survive moves of guests, and no checkpoint has them.
func (s JobSpec) Outward() bool { return s.Net == Internet }

// Outlet is what a host reports about leading guests to the Internet.
type Outlet struct {
	Allowed bool   `json:"allowed"`           // its owner lets jobs use its way to the Internet
	Trouble string `json:"trouble,omitempty"` // why it cannot lead them, for people; empty: it can
	Jobs    int    `json:"jobs,omitempty"`    // how many it leads now
}

// Leads reports whether a host can be a job's gateway.
func (f Facts) Leads() bool {
	return f.Internet != nil && f.Internet.Allowed && f.Internet.Trouble == ""
}

// Gateway is what the host that leads a job to the Internet must know beside the network.
type Gateway struct {
	Guests int `json:"guests"` // of the job: only their addresses are led
}

const gatewayLast = 253

// GatewayAddr is the address of the job's way to the Internet, and of its name server.
func (s Subnet) GatewayAddr() netip.Addr { return s.addr(gatewayLast) }

// GatewayMAC is its hardware address.
func (s Subnet) GatewayMAC() string { return s.mac(gatewayLast) }

// GatewayName is the bridge's port for it, a TAP link.
func (s Subnet) GatewayName() string { return fmt.Sprintf("pgg%06x", s.VNI()) }
