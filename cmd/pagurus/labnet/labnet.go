// Package labnet is the network that joins the hosts of a lab: a bridge in the machine's own
// network, and a pair of links from it to each host's namespace. Its caller makes the
// namespaces.
package labnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
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
)

// Family is of what kind all addresses of a lab are.
type Family string

// The families.
const (
	IPv4 Family = "IPv4"
	IPv6 Family = "IPv6"
)

// The networks of labs, which no office uses: 198.18.0.0/15 is reserved for network benchmarks (RFC 2544), and
// 2001:db8::/32 for documents (RFC 3849).
var networks = map[Family]netip.Prefix{IPv4: netip.MustParsePrefix("198.18.0.0/24"), IPv6: netip.MustParsePrefix("2001:db8:7067::/64")}

// controllerAt is the controller's number in the lab's network; no host's.
const controllerAt = 254

// Controller is the controller's address.
func (f Family) Controller() netip.Addr { return at(networks[f], controllerAt) }

// Addr is the address of host n, counted from 1.
func (f Family) Addr(n int) netip.Addr { return at(networks[f], n) }

// at is an address of a network by its last byte.
func at(network netip.Prefix, n int) netip.Addr {
	b := network.Addr().AsSlice()
	b[len(b)-1] = byte(n)
	a, _ := netip.AddrFromSlice(b) // which has the length of one
	return a
}

// EnsureBridge makes the lab's bridge with the controller's address. After an error call
// again.
func EnsureBridge(f Family) error {
	_, err := netlink.LinkByName(bridge)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = bridge
		err = netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	}
	if err == nil {
		err = addressed(bridge, f.Controller())
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
	bits, flags := networks[IPv4].Bits(), 0
	if addr.Is6() {
		bits, flags = networks[IPv6].Bits(), unix.IFA_F_NODAD // nobody else has it, and it is used at once
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("0"), 0); err != nil {
			return fmt.Errorf("a lab with IPv6 alone needs a kernel with IPv6: %w", err)
		}
	}
	ip := &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(bits, addr.BitLen())}, Flags: flags}
	if err := netlink.AddrReplace(link, ip); err != nil {
		return fmt.Errorf("giving %s the address %s: %w", name, addr, err)
	}
	return netlink.LinkSetUp(link)
}

// Port is the name of the machine's end of host n's link: its incoming traffic is what the
// host sends.
func Port(n int) string { return portPrefix + strconv.Itoa(n) }

// EnsureUplink joins host n's namespace to the bridge. After an error call again.
func EnsureUplink(n int, namespace daemon.Namespace, f Family) error {
	return joined(Port(n), bridge, namespace, func() error {
		if err := addressed(uplink, f.Addr(n)); err != nil {
			return err
		}
		return skipNumbers(n % manyNumbers)
	})
}

// wide is how large packets may be between hosts of a lab that are namespaces. They are copied in memory, so small ones would be slow for
// no reason; the slowest links of tests let a little more pass at once.
const wide = 32000

// Widen has host n's link carry large packets. After an error call again.
func Widen(n int, namespace daemon.Namespace) error {
	widen := func(name string) error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(link, wide)
	}
	if err := errors.Join(widen(Port(n)), namespace.Do(func() error { return widen(uplink) })); err != nil {
		return fmt.Errorf("having the link of %s carry large packets: %w", namespace, err)
	}
	return nil
}

const manyNumbers = 4

// skipNumbers has the next link get another number than on other hosts, as on machines: what one host calls a link by its number another
// does not have.
func skipNumbers(n int) error {
	for range n {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "skipped"
		link := &netlink.Bridge{LinkAttrs: attrs}
		if err := netlink.LinkAdd(link); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("numbering the host's links: %w", err)
		}
		if err := netlink.LinkDel(link); err != nil {
			return fmt.Errorf("numbering the host's links: %w", err)
		}
	}
	return nil
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
