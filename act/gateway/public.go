package gateway

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// private are the networks that guests never reach, whatever the host's routes say (RFC 6890, and those of the IANA's registries
// for special purposes): those of offices and homes, of providers inside, of the machine itself, of one link with the metadata of
// clouds, of labs, and multicast. 168.63.129.16 is the agent of Azure's hosts, which has a public address.
var private = networks("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
	"168.63.129.16/32", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4")

// Of IPv6 only this is the Internet, without what leads to IPv4.
var (
	global6   = netip.MustParsePrefix("2000::/3")
	tunnelled = networks("2001::/32", "2002::/16")
)

func networks(all ...string) (out []netip.Prefix) {
	for _, s := range all {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// Public reports whether an address can be a machine's on the Internet. A host's own network may have such addresses, too:
// outward asks the host's routes.
func Public(a netip.Addr) bool {
	a = a.Unmap()
	among := private
	if a.Is6() {
		if !global6.Contains(a) || a.Zone() != "" {
			return false
		}
		among = tunnelled
	}
	for _, p := range among {
		if p.Contains(a) {
			return false
		}
	}
	return a.IsValid()
}

// mailPort is where mail servers take mail. Whoever sends to many of them has the host's address on lists of those who send
// advertisements.
const mailPort = 25

// widest is the shortest prefix of a route to a network of the host's owner. Some tunnels take the default route by two halves.
const widest = 2

// allowed says why guests may not reach an address; nil: they may.
func allowed(to netip.AddrPort) error {
	if !Public(to.Addr()) {
		return fmt.Errorf("%s is not an address of the Internet", to.Addr())
	}
	if to.Port() == mailPort {
		return fmt.Errorf("port %d is for mail servers", mailPort)
	}
	return outward(to.Addr())
}

// outward is an error unless this host reaches an address by its default route. What it reaches otherwise is a network that
// the host is in, or its owner's, or the host itself.
func outward(to netip.Addr) error {
	routes, err := netlink.RouteGetWithOptions(net.IP(to.AsSlice()), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil {
		return fmt.Errorf("looking for the route to %s: %w", to, err)
	}
	for _, r := range routes {
		if r.Type != unix.RTN_UNICAST {
			return fmt.Errorf("%s is this host, or not one machine", to)
		}
		if r.Dst == nil {
			continue
		}
		if bits, _ := r.Dst.Mask.Size(); bits >= widest {
			return fmt.Errorf("%s is in %s, to which this host has a route of its own", to, r.Dst)
		}
	}
	if len(routes) == 0 {
		return fmt.Errorf("there is no route to %s", to)
	}
	return nil
}
