// Package labnet is the network that joins the hosts of a lab: a bridge in the machine's own
// network, and a pair of links from it to each host's namespace. Its caller makes the
// namespaces.
package labnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pagurus/act/daemon"
)

// MaxHosts is the most hosts of a lab.
const MaxHosts = 64

const (
	bridge     = "pglab0"
	portPrefix = "pglab" // and the host's number: the bridge's end of a host's link
	uplink     = "eth0"  // the host's end
	prefixBits = 24
)

// Controller is the controller's address. 198.18.0.0/15 is reserved for network benchmarks
// (RFC 2544), so no office uses it.
var Controller = netip.AddrFrom4([4]byte{198, 18, 0, 254})

// Addr is the address of host n, counted from 1.
func Addr(n int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 0, byte(n)}) }

// EnsureBridge makes the lab's bridge with the controller's address. After an error call
// again.
func EnsureBridge() error {
	_, err := netlink.LinkByName(bridge)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = bridge
		err = netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	}
	if err == nil {
		err = addressed(bridge, Controller)
	}
	if err != nil {
		return fmt.Errorf("making the lab's bridge %s: %w", bridge, err)
	}
	return nil
}

// addressed gives a link its address and sets it up.
func addressed(name string, addr netip.Addr) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	ip := &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(prefixBits, 32)}}
	if err := netlink.AddrReplace(link, ip); err != nil {
		return fmt.Errorf("giving %s the address %s: %w", name, addr, err)
	}
	return netlink.LinkSetUp(link)
}

// Port is the name of the machine's end of host n's link: its incoming traffic is what the
// host sends.
func Port(n int) string { return portPrefix + strconv.Itoa(n) }

// EnsureUplink joins host n's namespace to the bridge. After an error call again.
func EnsureUplink(n int, namespace daemon.Namespace) error {
	return joined(Port(n), bridge, namespace, func() error { return addressed(uplink, Addr(n)) })
}

// joined makes a link from a bridge to a namespace, and does there what makes use of its end.
func joined(port, to string, namespace daemon.Namespace, use func() error) error {
	return joinedAs(uplink, port, to, namespace, use)
}

// joinedAs is joined with a name for the link's end in the namespace.
func joinedAs(end, port, to string, namespace daemon.Namespace, use func() error) error {
	err := func() error {
		if _, err := netlink.LinkByName(port); errors.As(err, new(netlink.LinkNotFoundError)) {
			if err := addPair(end, port, namespace); err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
		link, err := netlink.LinkByName(port)
		if err != nil {
			return err
		}
		master, err := netlink.LinkByName(to)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMaster(link, master); err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		return namespace.Do(func() error {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			if err := netlink.LinkSetUp(lo); err != nil {
				return err
			}
			return use()
		})
	}()
	if err != nil {
		return fmt.Errorf("joining %s to the lab's network: %w", namespace, err)
	}
	return nil
}

func addPair(end, port string, namespace daemon.Namespace) error {
	ns, err := namespace.Open()
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = port
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: end, PeerNamespace: netlink.NsFd(ns.Fd())})
}

// listTries is how often links are listed again when they changed meanwhile.
const listTries = 10

// RemoveLinks removes the bridge and its links. After an error some remain; call again.
func RemoveLinks() error {
	links, err := netlink.LinkList()
	for try := 1; errors.Is(err, netlink.ErrDumpInterrupted) && try < listTries; try++ {
		links, err = netlink.LinkList()
	}
	if err != nil {
		return fmt.Errorf("listing links: %w", err)
	}
	var errs []error
	for _, l := range links {
		number, ours := strings.CutPrefix(l.Attrs().Name, portPrefix)
		if _, err := strconv.Atoi(number); !ours || err != nil {
			continue
		}
		if err := netlink.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) && !errors.As(err, new(netlink.LinkNotFoundError)) {
			errs = append(errs, fmt.Errorf("removing link %s: %w", l.Attrs().Name, err))
		}
	}
	return errors.Join(errs...)
}
