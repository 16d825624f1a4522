package overlay

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

type unixAttr = syscall.NetlinkRouteAttr

// netlinkLimit is the time for an answer from the kernel. It answers at once, but others
// may hold its network lock for seconds.
const netlinkLimit = 30 * time.Second

// apply makes one change. Deleting something that is already gone is not an error.
func (k *kernel) apply(c Change) error {
	switch c.Verb {
	case addLink:
		if err := k.makeLink(c.Key.Link, c.Link); err != nil {
			return err
		}
		return k.tuneLink(c.Key.Link, c.Link)
	case setLink:
		return k.tuneLink(c.Key.Link, c.Link)
	case deleteLink:
		m, err := k.linkMessage(c.Key.Link)
		if err != nil {
			return nil
		}
		return ignoring(k.link(unix.RTM_DELLINK, 0, m), unix.ENODEV)
	case setForward:
		return k.entry(unix.RTM_NEWNEIGH, netlink.Ndmsg{Family: unix.AF_BRIDGE, Flags: unix.NTF_MASTER, State: unix.NUD_NOARP},
			c.Value, c.Key.Addr, "")
	case deleteForward:
		return k.deleteForward(c)
	case setTunnel:
		return k.entry(unix.RTM_NEWNEIGH, netlink.Ndmsg{Family: unix.AF_BRIDGE, Flags: unix.NTF_SELF, State: unix.NUD_PERMANENT | unix.NUD_NOARP},
			c.Key.Link, c.Key.Addr, c.Value)
	case deleteTunnel:
		return ignoring(k.entry(unix.RTM_DELNEIGH, netlink.Ndmsg{Family: unix.AF_BRIDGE, Flags: unix.NTF_SELF, State: unix.NUD_PERMANENT}, c.Key.Link, c.Key.Addr, ""), unix.ENOENT)
	case setNeighbour:
		return k.entry(unix.RTM_NEWNEIGH, netlink.Ndmsg{Family: unix.AF_INET, State: unix.NUD_PERMANENT}, c.Key.Link, c.Value, c.Key.Addr)
	case deleteNeighbour:
		return ignoring(k.entry(unix.RTM_DELNEIGH, netlink.Ndmsg{Family: unix.AF_INET}, c.Key.Link, "", c.Key.Addr), unix.ENOENT)
	case setArrival:
		return k.setArrival(c)
	case deleteArrival:
		return k.deleteArrival(c)
	case setGateIn:
		return k.setGateIn(c)
	case setGateOut:
		return k.setGateOut(c)
	}
	return fmt.Errorf("unknown change")
}

// makeLink makes a link, which is down.
func (k *kernel) makeLink(name string, l Link) error {
	if l.Kind == tapKind {
		if err := makeTap(name); err != nil {
			return err
		}
		return k.findIndex(name)
	}
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, []byte(l.Kind))
	own := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	switch l.Kind {
	case tunnelKind:
		local, err := netip.ParseAddr(l.Tunnel.Local)
		if err != nil {
			return err
		}
		own.AddRtAttr(nl.IFLA_VXLAN_ID, nl.Uint32Attr(uint32(l.Tunnel.VNI)))
		kind := nl.IFLA_VXLAN_LOCAL
		if local.Is6() {
			kind = nl.IFLA_VXLAN_LOCAL6
		}
		own.AddRtAttr(kind, local.AsSlice())
		if l.Tunnel.Lower != "" {
			if err := k.findIndex(l.Tunnel.Lower); err != nil {
				return err
			}
			k.lower[name] = k.index[l.Tunnel.Lower]
			own.AddRtAttr(nl.IFLA_VXLAN_LINK, nl.Uint32Attr(uint32(k.lower[name])))
		}
		own.AddRtAttr(nl.IFLA_VXLAN_PORT, binary.BigEndian.AppendUint16(nil, l.Tunnel.Port))
		own.AddRtAttr(nl.IFLA_VXLAN_LEARNING, octet(l.Tunnel.Learning))
	case pairKind:
		peer := own.AddRtAttr(nl.VETH_INFO_PEER, nil)
		nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
		peer.AddRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(peerName(name)))
		peer.AddRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(l.MTU)))
		if l.PeerMAC != "" {
			mac, err := net.ParseMAC(l.PeerMAC)
			if err != nil {
				return err
			}
			peer.AddRtAttr(unix.IFLA_ADDRESS, mac)
		}
	}
	attributes := []nl.NetlinkRequestData{nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)), info}
	if l.Kind == vlanKind {
		if err := k.findIndex(l.Tunnel.Lower); err != nil {
			return err
		}
		own.AddRtAttr(nl.IFLA_VLAN_ID, nl.Uint16Attr(uint16(l.Tunnel.VNI)))
		attributes = append(attributes, nl.NewRtAttr(unix.IFLA_LINK, nl.Uint32Attr(uint32(k.index[l.Tunnel.Lower]))))
	}
	if l.Kind == bridgeKind {
		attributes = append(attributes, nl.NewRtAttr(unix.IFLA_ADDRESS, ownAddress()))
	}
	m := nl.NewIfInfomsg(unix.AF_UNSPEC)
	err := k.link(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, m, attributes...)
	if err != nil {
		return err
	}
	return k.findIndex(name)
}

// ownAddress is a hardware address for a bridge, at random, locally administered. A bridge without
// an address of its own takes its ports' lowest, and udev gives it one shortly after it was made. With
// each new address the kernel forgets the bridge's neighbours, the permanent ones too, and then
// nothing answers ARP for the other hosts' ports (neigh_changeaddr in net/core/neighbour.c).
func ownAddress() []byte {
	mac := make([]byte, 6)
	rand.Read(mac)
	mac[0] = mac[0]&^1 | 2
	return mac
}

// peerName is the name of a pair's other end.
func peerName(name string) string {
	for peer, by := range leads {
		if rest, ok := strings.CutPrefix(name, by.lead); ok && by.kind == pairKind {
			return peer + rest
		}
	}
	return ""
}

// makeTap makes a TAP link that persists without a guest. It has no owner: only root can
// attach a guest.
func makeTap(name string) error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening /dev/net/tun (modprobe tun): %w", err)
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, r); err != nil {
		return err
	}
	return unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1)
}

// tuneLink sets a link's properties. It brings the link up last, so that it never
// forwards a frame wrongly.
func (k *kernel) tuneLink(name string, l Link) error {
	if err := k.setBasics(name, l); err != nil {
		return fmt.Errorf("setting MTU and master: %w", err)
	}
	if err := k.silence(name); err != nil {
		return fmt.Errorf("switching off its own IPv6: %w", err)
	}
	if err := k.setHook(name, l.Hooks); err != nil {
		return fmt.Errorf("making a place for filters: %w", err)
	}
	if l.Tags {
		if err := k.addFilter(tagger(name)); err != nil {
			return fmt.Errorf("tagging its frames: %w", err)
		}
	}
	if l.Kind == bridgeKind {
		if err := k.setBridge(name, l.Bridge); err != nil {
			return fmt.Errorf("setting the bridge: %w", err)
		}
	}
	if l.HasPort {
		if err := k.setPort(name, l.Port); err != nil {
			return fmt.Errorf("setting the bridge's port: %w", err)
		}
	}
	m, err := k.linkMessage(name)
	if err != nil {
		return err
	}
	m.Change = unix.IFF_UP
	if l.Up {
		m.Flags = unix.IFF_UP
	}
	return k.link(unix.RTM_SETLINK, 0, m)
}

func (k *kernel) setBasics(name string, l Link) error {
	m, err := k.linkMessage(name)
	if err != nil {
		return err
	}
	master := 0
	if l.Master != "" {
		if master = k.index[l.Master]; master == 0 {
			return fmt.Errorf("there is no %s", l.Master)
		}
	}
	// The master first: a bridge without ports takes the MTU of its first port, and one
	// with ports lets each have its own.
	return k.link(unix.RTM_SETLINK, 0, m,
		nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(master))),
		nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(l.MTU))))
}

// silence keeps the kernel from giving the link an address and announcing it.
func (k *kernel) silence(name string) error {
	m, err := k.linkMessage(name)
	if err != nil {
		return err
	}
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	spec.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(inet6AddrGenMode, []byte{addrGenNone})
	// A kernel without IPv6 does not know the family, and announces nothing.
	return ignoring(k.link(unix.RTM_SETLINK, 0, m, spec), unix.EAFNOSUPPORT)
}

func (k *kernel) setBridge(name string, b Bridge) error {
	m, err := k.linkMessage(name)
	if err != nil {
		return err
	}
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, []byte(bridgeKind))
	own := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	stp := uint32(0)
	if b.STP {
		stp = 1
	}
	own.AddRtAttr(nl.IFLA_BR_STP_STATE, nl.Uint32Attr(stp))
	own.AddRtAttr(nl.IFLA_BR_MCAST_SNOOPING, octet(b.Snooping))
	if err := k.link(unix.RTM_NEWLINK, 0, m, info); err != nil {
		return err
	}
	if b.ToHost {
		return k.deleteFilter(guard(name))
	}
	return k.addFilter(guard(name))
}

func (k *kernel) setPort(name string, p Port) error {
	m, err := k.linkMessage(name)
	if err != nil {
		return err
	}
	m.Family = unix.AF_BRIDGE
	port := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
	for _, f := range []struct {
		attribute int
		on        bool
	}{
		{nl.IFLA_BRPORT_LEARNING, p.Learning}, {nl.IFLA_BRPORT_UNICAST_FLOOD, p.Unknown},
		{nl.IFLA_BRPORT_MCAST_FLOOD, p.Multicast}, {nl.IFLA_BRPORT_BCAST_FLOOD, p.Broadcast},
		{nl.IFLA_BRPORT_MODE, p.Hairpin}, {nl.IFLA_BRPORT_NEIGH_SUPPRESS, p.Suppress},
		{nl.IFLA_BRPORT_PROXYARP, p.AnswerARP},
	} {
		port.AddRtAttr(f.attribute, octet(f.on))
	}
	port.AddRtAttr(nl.IFLA_BRPORT_GROUP_FWD_MASK, nl.Uint16Attr(p.GroupForward))
	return k.link(unix.RTM_SETLINK, 0, m, port)
}

// deleteForward looks up the port first, because the kernel needs it.
func (k *kernel) deleteForward(c Change) error {
	port, _, _ := strings.Cut(c.Value, " ")
	err := k.entry(unix.RTM_DELNEIGH, netlink.Ndmsg{Family: unix.AF_BRIDGE, Flags: unix.NTF_MASTER}, port, c.Key.Addr, "")
	return ignoring(err, unix.ENOENT)
}

// entry sets or deletes one entry of a forwarding or neighbour table. Setting replaces an
// existing entry atomically.
func (k *kernel) entry(kind int, m netlink.Ndmsg, link, mac, addr string) error {
	index, ok := k.index[link]
	if !ok {
		if kind == unix.RTM_DELNEIGH {
			return nil
		}
		return fmt.Errorf("there is no %s", link)
	}
	m.Index = uint32(index)
	flags := unix.NLM_F_ACK
	if kind == unix.RTM_NEWNEIGH {
		flags |= unix.NLM_F_CREATE | unix.NLM_F_REPLACE
	}
	r := k.request(kind, flags)
	r.AddData(&m)
	if mac != "" {
		hardware, err := net.ParseMAC(mac)
		if err != nil {
			return err
		}
		r.AddData(nl.NewRtAttr(netlink.NDA_LLADDR, hardware))
	}
	if addr != "" {
		ip, err := netip.ParseAddr(addr)
		if err != nil {
			return err
		}
		r.AddData(nl.NewRtAttr(netlink.NDA_DST, ip.AsSlice()))
		if lower := k.lower[link]; lower != 0 { // a link-local address alone does not say which way
			r.AddData(nl.NewRtAttr(netlink.NDA_IFINDEX, nl.Uint32Attr(uint32(lower))))
		}
	}
	_, err := r.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func (k *kernel) linkMessage(name string) (*nl.IfInfomsg, error) {
	index, ok := k.index[name]
	if !ok {
		return nil, fmt.Errorf("there is no %s", name)
	}
	m := nl.NewIfInfomsg(unix.AF_UNSPEC)
	m.Index = int32(index)
	return m, nil
}

func (k *kernel) link(kind, flags int, m *nl.IfInfomsg, attributes ...nl.NetlinkRequestData) error {
	r := k.request(kind, flags|unix.NLM_F_ACK)
	r.AddData(m)
	for _, a := range attributes {
		r.AddData(a)
	}
	_, err := r.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func (k *kernel) findIndex(name string) error {
	m, err := k.findLink(name)
	if err == nil {
		k.index[name] = int(nl.DeserializeIfInfomsg(m).Index)
	}
	return err
}

// kindOf is what a link is.
func (k *kernel) kindOf(name string) (Kind, error) {
	m, err := k.findLink(name)
	if err != nil {
		return "", err
	}
	l, err := parseLink(m)
	return l.Kind, err
}

// findLink is what the kernel says of a link.
func (k *kernel) findLink(name string) ([]byte, error) {
	r := k.request(unix.RTM_GETLINK, 0)
	r.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	r.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	messages, err := r.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil || len(messages) == 0 {
		return nil, errors.Join(fmt.Errorf("looking for %s", name), err)
	}
	return messages[0], nil
}

func octet(on bool) []byte {
	if on {
		return []byte{1}
	}
	return []byte{0}
}

func ignoring(err, harmless error) error {
	if errors.Is(err, harmless) {
		return nil
	}
	return err
}
