package port

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/thread"
)

// inside is the name of the link in the container.
const inside = "eth0"

// leastTimeout is TCP's minimum retransmission time-out between guests, in microseconds,
// the same as in virtual machines. Frames that are lost during a move wait for it;
// Linux's default is 200 ms. The setting came with Linux 6.11.
const leastTimeout = "20000"

// Attach moves the far end of the port into a container's network namespace. There the
// link is called eth0, has the guest's addresses and MTU, and is up. It has a fixed
// hardware address for every other guest and the file server, because the network carries
// no broadcasts. The namespace is then ready for a guest agent that joins its job, or for
// a restored guest's sockets. The caller keeps the file. Attaching again changes nothing.
// After an error the link may be in either namespace: call Attach again, or Give.
func (p Port) Attach(ns *os.File) error {
	kernel, err := openKernel()
	if err != nil {
		return err
	}
	defer kernel.Close()
	host, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("reading this host's network: %w", err)
	}
	defer host.Close()
	err = thread.In(ns, func() error {
		inside, err := openKernel()
		if err != nil {
			return err
		}
		defer inside.Close()
		link, err := p.fetch(kernel, inside, func(link netlink.Link) error {
			return thread.In(host, func() error { return send(link, ns) })
		})
		if err != nil {
			return err
		}
		return p.configureLink(inside, link)
	})
	if err == nil {
		err = p.wait(kernel)
	}
	if err != nil {
		return p.notAttached(err)
	}
	return nil
}

// AttachMeanwhile starts Attach in another thread, because it takes as long as all other
// preparations of a target. at runs a function in the host's namespace. wait waits for the end
// of Attach and returns its error. The file may be closed meanwhile. After an error nothing was
// started.
func (p Port) AttachMeanwhile(ns *os.File, at func(func() error) error) (wait func() error, _ error) {
	fd, err := unix.FcntlInt(ns.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, p.notAttached(err)
	}
	own, done := os.NewFile(uintptr(fd), "network"), make(chan struct{})
	var taken error
	go func() {
		defer close(done)
		defer own.Close()
		taken = at(func() error { return p.Attach(own) })
	}()
	return func() error { <-done; return taken }, nil
}

func (p Port) notAttached(err error) error {
	return fmt.Errorf("attaching guest %d of network %d to its port: %w", p.Index, p.Subnet, err)
}

// Give undoes Attach: the link leaves the container's namespace and is as it was before.
// Then another container can be attached at once. Otherwise it would have to wait until
// the kernel has removed the first one's namespace, and the port with it. It is not an
// error if there is no link. After an error call Give again.
func (p Port) Give(ns *os.File) error {
	here, err := netns.Get()
	if err != nil {
		return fmt.Errorf("reading this host's network: %w", err)
	}
	defer here.Close()
	err = thread.In(ns, func() error {
		in, err := openKernel()
		if err != nil {
			return err
		}
		defer in.Close()
		link, err := p.find(in)
		if err != nil || link == nil {
			return err
		}
		name := p.Subnet.PortPeerName(p.Index)
		if err := errors.Join(in.LinkSetDown(link), in.LinkSetName(link, name)); err != nil {
			return fmt.Errorf("renaming it %s: %w", name, err)
		}
		return in.LinkSetNsFd(link, int(here))
	})
	if err != nil && !missing(err) { // it may have disappeared meanwhile
		return fmt.Errorf("detaching guest %d of network %d from its port: %w", p.Index, p.Subnet, err)
	}
	return nil
}

// Back reports whether the far end of the port is at the host, and so in no container.
func (p Port) Back() (bool, error) {
	err := withLink(p.Subnet.PortPeerName(p.Index), func(*netlink.Handle, netlink.Link) error { return nil })
	if missing(err) {
		return false, nil
	}
	return err == nil, err
}

// find returns the port's link in a container's namespace, under any of the names that it
// may have there, or nil if it is not there.
func (p Port) find(in *netlink.Handle) (netlink.Link, error) {
	for _, name := range []string{inside, p.Subnet.PortPeerName(p.Index)} {
		link, err := in.LinkByName(name)
		if missing(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("looking for %s in the container: %w", name, err)
		}
		if mac := link.Attrs().HardwareAddr.String(); mac != p.Subnet.GuestMAC(p.Index) {
			return nil, fmt.Errorf("the container has another %s already, with the address %s", name, mac)
		}
		return link, nil
	}
	return nil, nil
}

// fetch moves the link into the container's namespace, if it is not there yet.
func (p Port) fetch(from, to *netlink.Handle, send func(netlink.Link) error) (netlink.Link, error) {
	if link, err := p.find(to); err != nil || link != nil {
		return link, err
	}
	name := p.Subnet.PortPeerName(p.Index)
	link, err := from.LinkByName(name)
	if missing(err) {
		return nil, fmt.Errorf("this host has no %s: it is still another container's, or the job's network is not there yet", name)
	}
	if err != nil {
		return nil, fmt.Errorf("looking for %s: %w", name, err)
	}
	if err := send(link); err != nil {
		return nil, fmt.Errorf("moving %s into the container: %w", name, err)
	}
	if link, err = p.find(to); err == nil && link == nil {
		err = fmt.Errorf("%s did not arrive in the container", name)
	}
	return link, err
}

// linkNumber is the link's index in every container, the one after lo's. Programs
// remember it, so it must not change in a move. Open MPI 5 expects links to be numbered
// from 1 without gaps.
const linkNumber = 2

// newNumber is IFLA_NEW_IFINDEX, which came with Linux 5.13.
const newNumber = 49

// send moves a link from the namespace in which it is called to another, where it gets
// linkNumber.
func send(link netlink.Link, ns *os.File) error {
	request := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Index = int32(link.Attrs().Index)
	request.AddData(message)
	request.AddData(nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(ns.Fd()))))
	request.AddData(nl.NewRtAttr(newNumber, nl.Uint32Attr(linkNumber)))
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// carrierLimit is how long the kernel may take to tell the bridge that its port has a
// carrier. It does so at once, or a second later if it has reported many.
const carrierLimit = 5 * time.Second

// wait returns when the bridge accepts frames from the port. Before that the frames that
// a container sends are lost.
func (p Port) wait(h *netlink.Handle) error {
	for end := time.Now().Add(carrierLimit); ; time.Sleep(time.Millisecond) {
		link, err := h.LinkByName(p.link())
		if err != nil {
			return fmt.Errorf("looking for the port %s: %w", p.link(), err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the port %s stays %s: apply the job's network again", p.link(), link.Attrs().OperState)
		}
	}
}

// configureLink gives the link its name and addresses. It runs in the container's
// namespace.
func (p Port) configureLink(in *netlink.Handle, link netlink.Link) error {
	if link.Attrs().Name != inside {
		if err := in.LinkSetName(link, inside); err != nil {
			return fmt.Errorf("renaming the link %s: %w", inside, err)
		}
	}
	// IPv6 is not used here, and its announcements are broadcasts, too. A setting that
	// the kernel lacks is skipped. Go's programs listen with Multipath TCP if they can,
	// but its sockets cannot be moved.
	for path, value := range map[string]string{
		"net/ipv6/conf/" + inside + "/disable_ipv6": "1", "net/ipv4/tcp_rto_min_us": leastTimeout, "net/mptcp/enabled": "0",
	} {
		if err := os.WriteFile("/proc/sys/"+path, []byte(value), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("setting up the container's network: %w", err)
		}
	}
	if err := in.LinkSetMTU(link, p.mtu()); err != nil {
		return fmt.Errorf("setting the MTU: %w", err)
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: p.Subnet.GuestAddr(p.Index).AsSlice(), Mask: net.CIDRMask(fleet.SubnetPrefixBits, 32)}}
	if err := in.AddrReplace(link, addr); err != nil {
		return fmt.Errorf("giving it the address %s: %w", addr, err)
	}
	lo, err := in.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("looking for lo: %w", err)
	}
	if err := errors.Join(in.LinkSetUp(lo), in.LinkSetUp(link)); err != nil {
		return fmt.Errorf("switching its links on: %w", err)
	}
	for _, n := range p.neighbours() {
		n.LinkIndex = link.Attrs().Index
		if err := in.NeighSet(&n); err != nil {
			return fmt.Errorf("fixing the hardware address of %s: %w", n.IP, err)
		}
	}
	if !p.Out {
		return nil
	}
	if err := in.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: p.Subnet.GatewayAddr().AsSlice(), Protocol: unix.RTPROT_BOOT}); err != nil {
		return fmt.Errorf("making the route to the Internet: %w", err)
	}
	return nil
}

// neighbours returns all other members of the network.
func (p Port) neighbours() (all []netlink.Neigh) {
	add := func(ip net.IP, mac string) {
		hardware, err := net.ParseMAC(mac)
		if err != nil {
			panic(err) // it is made from numbers
		}
		all = append(all, netlink.Neigh{Family: unix.AF_INET, State: unix.NUD_PERMANENT, IP: ip, HardwareAddr: hardware})
	}
	for i := range min(p.Guests, fleet.MaxGuestsPerJob) {
		if i != p.Index {
			add(p.Subnet.GuestAddr(i).AsSlice(), p.Subnet.GuestMAC(i))
		}
	}
	add(p.Subnet.ShareAddr().AsSlice(), p.Subnet.ShareMAC())
	if p.Out {
		add(p.Subnet.GatewayAddr().AsSlice(), p.Subnet.GatewayMAC())
	}
	return all
}

// Return moves the link from a container's namespace, if that exists (nil: it does not),
// back to the host, and ends the cut. If the link is in neither namespace, it is in one
// that the kernel is still removing. The sockets there would send their last packets to
// the peers of the same guest elsewhere. So the link stays cut and disappears with that
// namespace.
func (p Port) Return(ns *os.File) error {
	if ns != nil {
		if err := p.Give(ns); err != nil {
			return err
		}
	}
	back, err := p.Back()
	if err != nil || !back {
		return err
	}
	return errors.Join(p.Free(), p.Mend())
}
