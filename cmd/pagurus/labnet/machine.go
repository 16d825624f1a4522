package labnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"pagurus/act/daemon"
)

// inner is the bridge in a machine's namespace, which joins its link to the machine.
const inner = "br0"

// Sockets are the links that a machine is plugged into, in its namespace.
type Sockets struct {
	LAN     string
	Card    string // in the LAN, too, for a card that has virtual functions
	Control string
}

// Control is the address of host n, a machine, for whoever controls the lab. Only processes
// in the host's namespace reach it; there controlEnd is theirs.
func Control(n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 19, 0, byte(n)}), networks[IPv4].Bits())
}

var controlEnd = netip.AddrFrom4([4]byte{198, 19, 0, 254})

// Local is the address of host n with the length of its network.
func Local(n int) netip.Prefix { return netip.PrefixFrom(IPv4.Addr(n), networks[IPv4].Bits()) }

// EnsureSockets joins host n's namespace to the bridge, and makes the links in it that a
// machine is plugged into. After an error call again.
func EnsureSockets(n int, namespace daemon.Namespace, s Sockets) error {
	return joined(Port(n), bridge, namespace, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = inner
		if err := ensure(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return err
		}
		for _, name := range []string{s.LAN, s.Card, s.Control} {
			attrs.Name = name
			if err := ensure(&netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_VNET_HDR | netlink.TUNTAP_NO_PI}); err != nil {
				return err
			}
		}
		master, err := netlink.LinkByName(inner)
		if err != nil {
			return err
		}
		for _, name := range []string{uplink, s.LAN, s.Card} {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if err := errors.Join(netlink.LinkSetMaster(link, master), netlink.LinkSetUp(link)); err != nil {
				return fmt.Errorf("plugging %s in: %w", name, err)
			}
		}
		return errors.Join(netlink.LinkSetUp(master), addressed(s.Control, controlEnd))
	})
}

// ensure makes a link unless there is one of its name.
func ensure(link netlink.Link) error {
	if _, err := netlink.LinkByName(link.Attrs().Name); !errors.As(err, new(netlink.LinkNotFoundError)) {
		return err
	}
	if err := netlink.LinkAdd(link); err != nil {
		return fmt.Errorf("making %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// SetPort sets the machine's end of host n's link up, or down: then nothing passes.
func SetPort(n int, up bool) error {
	link, err := netlink.LinkByName(Port(n))
	if err == nil && up {
		err = netlink.LinkSetUp(link)
	} else if err == nil {
		err = netlink.LinkSetDown(link)
	}
	if err != nil {
		return fmt.Errorf("setting the link of host %d: %w", n, err)
	}
	return nil
}

// PortUp reports whether the machine's end of host n's link is up.
func PortUp(n int) bool {
	link, err := netlink.LinkByName(Port(n))
	return err == nil && link.Attrs().Flags&net.FlagUp != 0
}

// Uplink is the end of a host's link in its namespace.
const Uplink = uplink
