package overlay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// kernel is a connection to the network namespace in which it was opened.
type kernel struct {
	sockets map[int]*nl.SocketHandle
	traffic *netlink.Handle // for filters
	rules   *nftables.Conn  // of the firewall
	index   map[string]int  // of all our links, updated by read and apply
	lower   map[string]int  // of our tunnels that take one link, that link's; likewise
}

func openKernel() (*kernel, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	limit := unix.NsecToTimeval(netlinkLimit.Nanoseconds())
	if err := errors.Join(s.SetReceiveTimeout(&limit), s.SetSendTimeout(&limit)); err != nil {
		s.Close()
		return nil, fmt.Errorf("setting up a netlink socket: %w", err)
	}
	// Adds the kernel's message to error numbers, if supported.
	_ = s.SetExtAck(true)
	traffic, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err == nil {
		err = traffic.SetSocketTimeout(netlinkLimit)
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	rules, err := nftables.New(nftables.AsLasting())
	if err != nil {
		s.Close()
		traffic.Close()
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	return &kernel{traffic: traffic, rules: rules, sockets: map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}, index: map[string]int{}, lower: map[string]int{}}, nil
}

// led are the addresses that virtual functions of a card have.
func (k *kernel) led(card string) (map[ledFrames]bool, error) {
	link, err := k.traffic.LinkByName(card)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the functions of %s: %w", card, err)
	}
	all := map[ledFrames]bool{}
	for _, f := range link.Attrs().Vfs {
		all[ledFrames{f.Mac.String(), uint16(f.Vlan)}] = true
	}
	return all, nil
}

func (k *kernel) close() error {
	k.sockets[unix.NETLINK_ROUTE].Close()
	k.traffic.Close()
	return k.rules.CloseLasting()
}

func (k *kernel) request(kind, flags int) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(kind, flags)
	r.Sockets = k.sockets
	return r
}

// dumpTries is how often a table that changed during reading is read again.
const dumpTries = 10

// whole reads a table until it does not change during reading.
func whole[T any](read func() ([]T, error)) (rows []T, err error) {
	for range dumpTries {
		rows, err = read()
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return rows, err
}

func (k *kernel) dump(kind int, answer uint16, family int) ([][]byte, error) {
	return whole(func() ([][]byte, error) {
		r := k.request(kind, unix.NLM_F_DUMP)
		if kind == unix.RTM_GETLINK {
			r.AddData(nl.NewIfInfomsg(family))
		} else {
			r.AddData(&netlink.Ndmsg{Family: uint8(family)})
		}
		return r.Execute(unix.NETLINK_ROUTE, answer)
	})
}

// read returns the state of all our links, and the gate of the link to other hosts, if there is one.
func (k *kernel) read(lower string) (State, error) {
	s := newState()
	messages, err := k.dump(unix.RTM_GETLINK, unix.RTM_NEWLINK, unix.AF_UNSPEC)
	if err != nil {
		return s, fmt.Errorf("reading the links: %w", err)
	}
	names := map[int]string{} // of all links
	masters := map[string]int{}
	k.index, k.lower = map[string]int{}, map[string]int{}
	for _, m := range messages {
		l, err := parseLink(m)
		if err != nil {
			return s, err
		}
		names[l.index] = l.name
		if l.name == lower {
			k.index[lower] = l.index
		}
		if ours.MatchString(l.name) {
			s.Links[l.name] = l.Link
			masters[l.name] = l.master
			k.index[l.name] = l.index
			if l.lower != 0 {
				k.lower[l.name] = l.lower
			}
		}
	}
	for name, lower := range k.lower {
		l := s.Links[name]
		l.Tunnel.Lower = names[lower]
		s.Links[name] = l
	}
	for name, master := range masters {
		if master != 0 {
			l := s.Links[name]
			l.Master = names[master]
			s.Links[name] = l
		}
	}
	if err := k.readForwarding(s, names); err != nil {
		return s, fmt.Errorf("reading the forwarding tables: %w", err)
	}
	if err := k.readNeighbours(s, names); err != nil {
		return s, fmt.Errorf("reading the neighbour tables: %w", err)
	}
	if err := k.readHooks(s, names); err != nil {
		return s, fmt.Errorf("reading where filters hang: %w", err)
	}
	if err := k.readFilters(s); err != nil {
		return s, fmt.Errorf("reading the filters: %w", err)
	}
	if k.index[lower] != 0 {
		if err := k.readGate(s, lower); err != nil {
			return s, fmt.Errorf("reading what %s lets through: %w", lower, err)
		}
	}
	return s, nil
}

type rawLink struct {
	Link
	name          string
	index, master int
	lower         int // the link that a tunnel's frames take; 0: as the routes are
}

func parseLink(m []byte) (rawLink, error) {
	head := nl.DeserializeIfInfomsg(m)
	l := rawLink{index: int(head.Index), Link: Link{Up: head.Flags&unix.IFF_UP != 0}}
	attributes, err := nl.ParseRouteAttr(m[head.Len():])
	if err != nil {
		return l, fmt.Errorf("reading a link: %w", err)
	}
	link := 0
	for _, a := range attributes {
		switch a.Attr.Type & nl.NLA_TYPE_MASK {
		case unix.IFLA_IFNAME:
			l.name = string(bytes.TrimRight(a.Value, "\x00"))
		case unix.IFLA_MTU:
			l.MTU = int(u32(a.Value))
		case unix.IFLA_LINK:
			link = int(u32(a.Value))
		case unix.IFLA_MASTER:
			l.master = int(u32(a.Value))
		case unix.IFLA_LINKINFO:
			err = errors.Join(err, l.parseLinkKind(a.Value))
		case unix.IFLA_AF_SPEC:
			l.SelfV6 = selfV6(a.Value)
		}
	}
	if l.Kind == vlanKind {
		l.lower = link
	}
	l.Bridge.ToHost = l.Kind == bridgeKind // unless there is a guard filter
	return l, err
}

func (l *rawLink) parseLinkKind(b []byte) error {
	var own, slave []byte
	slaveKind := ""
	for _, a := range parts(b) {
		switch a.Attr.Type {
		case nl.IFLA_INFO_KIND:
			l.Kind = Kind(bytes.TrimRight(a.Value, "\x00"))
		case nl.IFLA_INFO_DATA:
			own = a.Value
		case nl.IFLA_INFO_SLAVE_KIND:
			slaveKind = string(bytes.TrimRight(a.Value, "\x00"))
		case nl.IFLA_INFO_SLAVE_DATA:
			slave = a.Value
		}
	}
	switch l.Kind {
	case bridgeKind:
		for _, a := range parts(own) {
			switch a.Attr.Type {
			case nl.IFLA_BR_STP_STATE:
				l.Bridge.STP = u32(a.Value) != 0
			case nl.IFLA_BR_MCAST_SNOOPING:
				l.Bridge.Snooping = isSet(a)
			}
		}
	case tunnelKind:
		l.Tunnel, l.lower = parseTunnel(own)
	case vlanKind:
		for _, a := range parts(own) {
			if a.Attr.Type == nl.IFLA_VLAN_ID && len(a.Value) == 2 {
				l.Tunnel.VNI = int(binary.NativeEndian.Uint16(a.Value))
			}
		}
	}
	if slaveKind == "bridge" {
		l.HasPort, l.Port = true, parsePort(slave)
	}
	return nil
}

func parseTunnel(b []byte) (t Tunnel, lower int) {
	for _, a := range parts(b) {
		switch a.Attr.Type {
		case nl.IFLA_VXLAN_ID:
			t.VNI = int(u32(a.Value))
		case nl.IFLA_VXLAN_LOCAL, nl.IFLA_VXLAN_LOCAL6:
			t.Local = net.IP(a.Value).String()
		case nl.IFLA_VXLAN_LINK:
			lower = int(u32(a.Value))
		case nl.IFLA_VXLAN_GROUP, nl.IFLA_VXLAN_GROUP6:
			t.Default = net.IP(a.Value).String()
		case nl.IFLA_VXLAN_PORT:
			if len(a.Value) == 2 {
				t.Port = binary.BigEndian.Uint16(a.Value)
			}
		case nl.IFLA_VXLAN_LEARNING:
			t.Learning = isSet(a)
		}
	}
	return t, lower
}

func parsePort(b []byte) Port {
	var p Port
	for _, a := range parts(b) {
		switch a.Attr.Type {
		case nl.IFLA_BRPORT_LEARNING:
			p.Learning = isSet(a)
		case nl.IFLA_BRPORT_UNICAST_FLOOD:
			p.Unknown = isSet(a)
		case nl.IFLA_BRPORT_MCAST_FLOOD:
			p.Multicast = isSet(a)
		case nl.IFLA_BRPORT_BCAST_FLOOD:
			p.Broadcast = isSet(a)
		case nl.IFLA_BRPORT_MODE:
			p.Hairpin = isSet(a)
		case nl.IFLA_BRPORT_NEIGH_SUPPRESS:
			p.Suppress = isSet(a)
		case nl.IFLA_BRPORT_PROXYARP:
			p.AnswerARP = isSet(a)
		case nl.IFLA_BRPORT_GROUP_FWD_MASK:
			if len(a.Value) == 2 {
				p.GroupForward = binary.NativeEndian.Uint16(a.Value)
			}
		}
	}
	return p
}

const (
	inet6AddrGenMode = 8 // IFLA_INET6_ADDR_GEN_MODE
	addrGenNone      = 1 // IN6_ADDR_GEN_MODE_NONE
)

func selfV6(b []byte) bool {
	for _, family := range parts(b) {
		if family.Attr.Type != unix.AF_INET6 {
			continue
		}
		for _, a := range parts(family.Value) {
			if a.Attr.Type == inet6AddrGenMode && len(a.Value) > 0 {
				return a.Value[0] != addrGenNone
			}
		}
	}
	return false
}

// readForwarding reads the bridges' tables, which name ports, and the tunnels' tables,
// which name hosts.
func (k *kernel) readForwarding(s State, names map[int]string) error {
	messages, err := k.dump(unix.RTM_GETNEIGH, unix.RTM_NEWNEIGH, unix.AF_BRIDGE)
	if err != nil {
		return err
	}
	for _, m := range messages {
		n, err := netlink.NeighDeserialize(m)
		if err != nil {
			return err
		}
		device, mac := names[n.LinkIndex], n.HardwareAddr.String()
		switch {
		case n.Flags&unix.NTF_SELF != 0 && s.Links[device].Kind == tunnelKind:
			at := Key{device, mac}
			if others := s.Tunnel[at]; others != "" {
				s.Tunnel[at] = others + "," + n.IP.String()
			} else {
				s.Tunnel[at] = n.IP.String()
			}
		case n.Flags&unix.NTF_SELF != 0 && s.Links[device].Kind == vlanKind && len(n.HardwareAddr) == 6 && n.HardwareAddr[0]&1 == 0:
			s.Tunnel[Key{device, mac}] = ""
		// The bridge makes permanent entries for the links' own addresses.
		case n.MasterIndex != 0 && n.Flags&unix.NTF_SELF == 0 && n.State&unix.NUD_PERMANENT == 0 && n.Vlan == 0:
			if bridge := names[n.MasterIndex]; s.Links[bridge].Kind == bridgeKind {
				at := Key{bridge, mac}
				s.Forward[at] = device
				if n.State&unix.NUD_NOARP == 0 {
					s.Forward[at] += " (learnt)"
				}
			}
		}
	}
	return nil
}

func (k *kernel) readNeighbours(s State, names map[int]string) error {
	messages, err := k.dump(unix.RTM_GETNEIGH, unix.RTM_NEWNEIGH, unix.AF_INET)
	if err != nil {
		return err
	}
	for _, m := range messages {
		n, err := netlink.NeighDeserialize(m)
		if err != nil {
			return err
		}
		bridge := names[n.LinkIndex]
		addr, ok := netip.AddrFromSlice(n.IP)
		if ok && s.Links[bridge].Kind == bridgeKind && n.State&unix.NUD_PERMANENT != 0 {
			s.Neighbours[Key{bridge, addr.Unmap().String()}] = n.HardwareAddr.String()
		}
	}
	return nil
}

// parts are the attributes nested in b; none if it is malformed.
func parts(b []byte) []unixAttr {
	attributes, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil
	}
	for i := range attributes {
		attributes[i].Attr.Type &= nl.NLA_TYPE_MASK
	}
	return attributes
}

func u32(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

func isSet(a unixAttr) bool { return len(a.Value) > 0 && a.Value[0] != 0 }
