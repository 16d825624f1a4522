package labnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"pagurus/act/badlink"
	"pagurus/act/daemon"
)

// A site is a network of its own: a bridge without an address, the hosts' links, and a router. The lab's bridge is
// the Internet to it. Routers are namespaces. All links have an end in the machine's own network.

// MaxSites is the most sites of a lab.
const MaxSites = 40

// The numbers of a site's links and addresses begin here; no host's do.
const (
	siteOutside = 100 // the router's link to the Internet, and its address there
	siteBridge  = 200
	siteInside  = 300 // the router's link to its site
	siteRouter  = 254 // its address there
)

const insideLink = "eth1" // of a router; uplink leads outside

// NAT is how a router translates addresses.
type NAT string

// The kinds. Of any, only what was called from inside may answer.
const (
	Cone      NAT = "cone"      // the port of a host's WireGuard device is the same for whoever is called (RFC 4787, REQ-1)
	Symmetric NAT = "symmetric" // another port for each that is called
	Routed    NAT = "none"      // addresses are not translated, and everybody may call
)

// NATs are the kinds, for people.
var NATs = []NAT{Cone, Symmetric, Routed}

// ParseNATs reads the kinds of some sites' routers.
func ParseNATs(words []string) (all []NAT, err error) {
	for _, w := range words {
		if !slices.Contains(NATs, NAT(w)) {
			return nil, fmt.Errorf("%q is not a kind of NAT: write cone, symmetric or none", w)
		}
		all = append(all, NAT(w))
	}
	return all, nil
}

// Site is one of a lab's. NATs are those of all sites, which its router must know.
type Site struct {
	Number int // from 1
	NATs   []NAT
	Family Family
}

// NAT is the kind of its router.
func (s Site) NAT() NAT { return s.NATs[(s.Number-1)%len(s.NATs)] }

// prefix is the network of the site. Sites behind NAT have the same one, as homes do.
func (s Site) prefix() netip.Prefix {
	third := byte(0)
	if s.NAT() == Routed {
		third = byte(s.Number)
	}
	if s.Family == IPv6 {
		b := networks[IPv6].Addr().As16()
		b[networks[IPv6].Bits()/8-1] = third
		return netip.PrefixFrom(netip.AddrFrom16(b), networks[IPv6].Bits())
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 19, third, 0}), networks[IPv4].Bits())
}

// Addr is the address of the site's i-th host, counted from 1.
func (s Site) Addr(i int) netip.Addr { return at(s.prefix(), i) }

// Outside is its router's address on the Internet.
func (s Site) Outside() netip.Addr { return s.Family.Addr(siteOutside + s.Number) }

// Impair impairs both ends of its router's link to the Internet.
func (s Site) Impair(router daemon.Namespace, link badlink.Impairment) error {
	if link == (badlink.Impairment{}) {
		return nil
	}
	back := link
	back.Loss = 0 // what leaves the site comes in at our end
	return errors.Join(badlink.Set(Port(siteOutside+s.Number), link), router.Do(func() error { return badlink.Set(uplink, back) }))
}

// EnsureSite makes a site's bridge and router. After an error call again. most is the most hosts of it.
func EnsureSite(s Site, router daemon.Namespace, wireGuardPort uint16, most int) error {
	err := func() error {
		if err := ensureBridge(Port(siteBridge + s.Number)); err != nil {
			return err
		}
		if err := joined(Port(siteOutside+s.Number), bridge, router, func() error { return addressed(uplink, s.Outside()) }); err != nil {
			return err
		}
		if err := joinedAs(insideLink, Port(siteInside+s.Number), Port(siteBridge+s.Number), router, func() error {
			return addressed(insideLink, s.Addr(siteRouter))
		}); err != nil {
			return err
		}
		if err := reach(s); err != nil {
			return err
		}
		return router.Do(func() error { return s.route(wireGuardPort, most) })
	}()
	if err != nil {
		return fmt.Errorf("making the router of site %d: %w", s.Number, err)
	}
	return nil
}

// reach has this namespace reach a site that is not behind NAT.
func reach(s Site) error {
	if s.NAT() != Routed {
		return nil
	}
	return routeTo(s.prefix(), s.Outside())
}

// route makes this namespace the site's router.
func (s Site) route(wireGuardPort uint16, most int) error {
	forward := map[Family]string{IPv4: "ipv4/ip_forward", IPv6: "ipv6/conf/all/forwarding"}[s.Family]
	if err := os.WriteFile("/proc/sys/net/"+forward, []byte("1"), 0); err != nil {
		return fmt.Errorf("forwarding packets: %w", err)
	}
	for n := range MaxSites {
		other := Site{n + 1, s.NATs, s.Family}
		if other.Number != s.Number && other.NAT() == Routed { // there may be fewer, and then nobody is there
			if err := reach(other); err != nil {
				return err
			}
		}
	}
	if s.NAT() == Routed {
		return nil
	}
	return translate(s, wireGuardPort, most)
}

// EnsureSiteUplink joins host n's namespace to a site, as its i-th host. After an error call again.
func EnsureSiteUplink(n int, namespace daemon.Namespace, s Site, i int) error {
	return joined(Port(n), Port(siteBridge+s.Number), namespace, func() error {
		if err := addressed(uplink, s.Addr(i)); err != nil {
			return err
		}
		all := netip.IPv4Unspecified()
		if s.Family == IPv6 {
			all = netip.IPv6Unspecified()
		}
		return routeTo(netip.PrefixFrom(all, 0), s.Addr(siteRouter))
	})
}

// routeTo leads to a network by a gateway.
func routeTo(to netip.Prefix, by netip.Addr) error {
	dst := &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())}
	if err := netlink.RouteReplace(&netlink.Route{Dst: dst, Gw: by.AsSlice()}); err != nil {
		return fmt.Errorf("leading to %s by %s: %w", to, by, err)
	}
	return nil
}

func ensureBridge(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	if err := ensure(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		return err
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	// The machine itself is not a part of it.
	err = os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, netlink.LinkSetUp(link))
}

// Kinds names the kinds of NAT for people.
func Kinds(all []NAT) string {
	var words []string
	for _, n := range all {
		words = append(words, string(n))
	}
	return strings.Join(words, ",")
}
