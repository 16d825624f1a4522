package share

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/thread"
)

// plot is a network namespace with only one job's network. It has no name and no mount:
// it exists as long as the server in it, or this file, and takes its end of the link pair
// with it.
type plot struct{ file *os.File }

// newPlot makes an empty one.
func newPlot() (*plot, error) {
	var p *plot
	err := thread.Own(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("making a network namespace: %w", err)
		}
		p, err = openPlot("/proc/thread-self/ns/net")
		return err
	})
	return p, err
}

func openPlot(path string) (*plot, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening a network namespace: %w", err)
	}
	return &plot{file: f}, nil
}

func (p *plot) close() { p.file.Close() }

// do runs f in the namespace.
func (p *plot) do(f func() error) error {
	return thread.Own(func() error {
		if err := unix.Setns(int(p.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("entering a network namespace: %w", err)
		}
		return f()
	})
}

// end is a namespace's end of a pair of links to a job's network.
type end struct {
	name, other string // of its link, and of the bridge's
	addr        netip.Prefix
	mac         string
	beyond      netip.Prefix // what else is on the network
	mtu         int
}

// serverEnd is the file server's.
func serverEnd(n fleet.Network) end {
	s := n.Subnet
	return end{mtu: n.WholeMTU(), name: s.SharePeerName(), other: s.ShareName(), addr: netip.PrefixFrom(s.ShareAddr(), fleet.SubnetPrefixBits), mac: s.ShareMAC(), beyond: clients}
}

// clientEnd is that of a host's file client. It has its address alone: others' clients are
// of no use to it.
func clientEnd(n fleet.Network) end {
	s, m := n.Subnet, *n.Mount
	server := netip.PrefixFrom(s.ShareAddr(), s.ShareAddr().BitLen())
	return end{mtu: n.WholeMTU(), name: s.ClientPeerName(), other: s.ClientName(), addr: netip.PrefixFrom(m.Addr, m.Addr.BitLen()), mac: m.MAC, beyond: server}
}

// join connects the namespace to the job's network: it moves its end of the link pair in,
// unless it is there, and sets the addresses.
func (p *plot) join(e end) error {
	inside, err := netlink.NewHandleAt(netns.NsHandle(p.file.Fd()))
	if err != nil {
		return fmt.Errorf("looking into a network namespace: %w", err)
	}
	defer inside.Close()
	link, err := inside.LinkByName(e.name)
	if missing(err) {
		if err := p.moveLink(e); err != nil {
			return err
		}
		link, err = inside.LinkByName(e.name)
	}
	if err != nil {
		return fmt.Errorf("looking for %s: %w", e.name, err)
	}
	return configureLink(inside, link, e)
}

// moveLink moves the link from the host's network into the namespace.
func (p *plot) moveLink(e end) error {
	link, err := netlink.LinkByName(e.name)
	if missing(err) {
		// It is in a forgotten namespace. Deleting its other end removes it, and the
		// network can be made again.
		if other, err := netlink.LinkByName(e.other); err == nil {
			if err := netlink.LinkDel(other); err != nil && !missing(err) {
				return fmt.Errorf("removing the lost link %s: %w", e.other, err)
			}
		}
		return fmt.Errorf("the job's network has no %s for its files yet: apply the networks again", e.name)
	}
	if err != nil {
		return fmt.Errorf("looking for %s: %w", e.name, err)
	}
	if err := netlink.LinkSetNsFd(link, int(p.file.Fd())); err != nil {
		return fmt.Errorf("taking %s into its own network: %w", e.name, err)
	}
	return nil
}

// configureLink gives the link its addresses; it can be repeated.
func configureLink(inside *netlink.Handle, link netlink.Link, e end) error {
	mac, err := net.ParseMAC(e.mac)
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: ipNet(e.addr)}
	lo, err := inside.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("looking for lo: %w", err)
	}
	const addrGenNone = 1 // IN6_ADDR_GEN_MODE_NONE: no automatic IPv6 address
	if err := inside.LinkSetIP6AddrGenMode(link, addrGenNone); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("switching off IPv6: %w", err)
	}
	if link.Attrs().HardwareAddr.String() != mac.String() {
		if err := inside.LinkSetHardwareAddr(link, mac); err != nil {
			return fmt.Errorf("setting the hardware address: %w", err)
		}
	}
	if err := inside.LinkSetMTU(link, e.mtu); err != nil {
		return fmt.Errorf("setting the MTU: %w", err)
	}
	if err := inside.AddrReplace(link, addr); err != nil {
		return fmt.Errorf("setting the address: %w", err)
	}
	if err := errors.Join(inside.LinkSetUp(lo), inside.LinkSetUp(link)); err != nil {
		return fmt.Errorf("switching its links on: %w", err)
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(e.beyond), Scope: netlink.SCOPE_LINK}
	if err := inside.RouteReplace(route); err != nil {
		return fmt.Errorf("setting the way to %s: %w", e.beyond, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func missing(err error) bool {
	var none netlink.LinkNotFoundError
	return errors.As(err, &none) || errors.Is(err, unix.ENODEV)
}
