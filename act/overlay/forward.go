package overlay

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// A moving guest is suspended briefly, and frames for it must not be lost: TCP would wait
// at least 200 ms before it sends them again. So just before the suspension, its source's
// host begins to send them back into the tunnel, to the target (Forward). There a filter
// puts frames from the tunnel for an expected guest directly into its port (arrivals). It
// bypasses the bridge, which still has the guest at the source. The port queues frames
// until the guest runs. Both are filters on links, not entries of the bridges, because a
// bridge that sends a frame back to where it came from can send it round without end.

// Forward sends frames for guest index of a network to the host it moves to, the Next of
// its endpoint, instead of to the guest. This lasts until Deliver, or until the guest's
// port is gone. A repeated call changes nothing. After an error frames go to the guest as
// before. On a VLAN it does nothing: the switches would learn that the sender is here. What a
// network is, the kernel says: an agent that has just begun has not heard of its networks.
func (o *Overlay) Forward(s fleet.Subnet, index int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	kind, err := o.kernel.kindOf(s.TunnelName())
	if err == nil && kind != tunnelKind {
		return nil
	}
	if err = errors.Join(err, o.kernel.forward(s.TapName(index), s.TunnelName())); err != nil {
		return fmt.Errorf("forwarding frames for guest %d of network %d: %w", index, s, err)
	}
	return nil
}

// Deliver ends Forward: frames go to the guest's own port. If they already do, it changes
// nothing. After an error call again.
func (o *Overlay) Deliver(s fleet.Subnet, index int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.kernel.deliver(s.TapName(index)); err != nil {
		return fmt.Errorf("delivering frames for guest %d of network %d: %w", index, s, err)
	}
	return nil
}

func (k *kernel) forward(tap, tunnel string) error {
	if err := errors.Join(k.findIndex(tap), k.findIndex(tunnel)); err != nil {
		return err
	}
	return k.addFilter(filter{link: tap, parent: netlink.HANDLE_MIN_EGRESS, handle: 1, name: "forward", code: redirect(k.index[tunnel])})
}

func (k *kernel) deliver(tap string) error {
	if k.findIndex(tap) != nil {
		return nil // no port, so no forwarding
	}
	return k.deleteFilter(filter{link: tap, parent: netlink.HANDLE_MIN_EGRESS, handle: 1})
}

// filter is a program on one side of a link.
type filter struct {
	link   string
	parent uint32
	handle uint32
	name   string
	code   asm.Instructions
}

// hook is the place for filters on a link (tc-bpf(8), clsact).
func (k *kernel) hook(link string) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: k.index[link], Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
}

// setHook makes or removes a hook with all its filters. The kernel drops the link's
// frames meanwhile, so the hook is made with the link and not when a filter is needed.
func (k *kernel) setHook(link string, wanted bool) error {
	if wanted {
		return ignoring(k.traffic.QdiscAdd(k.hook(link)), unix.EEXIST)
	}
	return absent(k.traffic.QdiscDel(k.hook(link)))
}

// absent ignores the errors of kernels for a missing hook or filter.
func absent(err error) error { return ignoring(ignoring(err, unix.ENOENT), unix.EINVAL) }

// readHooks marks the links that have a hook.
func (k *kernel) readHooks(s State, names map[int]string) error {
	all, err := whole(func() ([]netlink.Qdisc, error) { return k.traffic.QdiscList(nil) })
	if err != nil {
		return err
	}
	for _, q := range all {
		name := names[q.Attrs().LinkIndex]
		if l, ours := s.Links[name]; ours && q.Type() == "clsact" {
			l.Hooks = true
			s.Links[name] = l
		}
	}
	return nil
}

func (k *kernel) addFilter(f filter) error {
	p, err := loadProgram(f.code)
	if err != nil {
		return err
	}
	defer p.Close() // the filter keeps it loaded
	return k.traffic.FilterReplace(k.describe(f, p.FD()))
}

func (k *kernel) describe(f filter, fd int) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: k.index[f.link], Parent: f.parent, Handle: f.handle, Protocol: unix.ETH_P_ALL, Priority: fleet.ForwardPriority,
		},
		Fd: fd, Name: f.name, DirectAction: true,
	}
}

// guard is the filter that keeps guests away from the host. On a bridge it gets only
// frames for the host's own stack, not those between ports. Without it a guest could
// reach every service of the host, since Linux answers for all its addresses on every
// link.
func guard(bridge string) filter {
	return filter{link: bridge, parent: netlink.HANDLE_MIN_INGRESS, handle: 1, name: "guard", code: dropAll()}
}

// arrival is the filter that puts frames from a tunnel for an address into a port. Its
// name encodes all of that for readArrival, including the port's link number: a remade
// port has the same name and another number.
func (k *kernel) arrival(tunnel, mac, tap string) (filter, error) {
	hardware, err := net.ParseMAC(mac)
	if err != nil || len(hardware) != 6 {
		return filter{}, fmt.Errorf("%q is not a hardware address", mac)
	}
	to, ok := k.index[tap]
	if !ok {
		return filter{}, fmt.Errorf("there is no %s", tap)
	}
	return filter{
		link: tunnel, parent: netlink.HANDLE_MIN_INGRESS, handle: uint32(hardware[5]) + 1,
		name: fmt.Sprintf("%s %s %d", mac, tap, to), code: redirectOnly(hardware, to),
	}, nil
}

func (k *kernel) setArrival(c Change) error {
	f, err := k.arrival(c.Key.Link, c.Key.Addr, c.Value)
	if err != nil {
		return err
	}
	return k.addFilter(f)
}

func (k *kernel) deleteArrival(c Change) error {
	hardware, err := net.ParseMAC(c.Key.Addr)
	if err != nil || len(hardware) != 6 || k.index[c.Key.Link] == 0 {
		return nil
	}
	return k.deleteFilter(filter{link: c.Key.Link, parent: netlink.HANDLE_MIN_INGRESS, handle: uint32(hardware[5]) + 1})
}

func (k *kernel) deleteFilter(f filter) error { return absent(k.traffic.FilterDel(k.describe(f, -1))) }

// readFilters reads the filters of all tunnels and bridges.
func (k *kernel) readFilters(s State) error {
	for name, l := range s.Links {
		if l.Kind != tunnelKind && l.Kind != vlanKind && l.Kind != bridgeKind {
			continue
		}
		filters, err := k.programs(name, netlink.HANDLE_MIN_INGRESS)
		if err != nil {
			return err
		}
		for _, f := range filters {
			if l.Kind != bridgeKind {
				k.readArrival(s, name, f)
			} else if f.Name == guard(name).name {
				l.Bridge.ToHost = false
				s.Links[name] = l
			}
		}
		if l.Tunnel.Lower == "" {
			continue
		}
		if filters, err = k.programs(name, netlink.HANDLE_MIN_EGRESS); err != nil {
			return err
		}
		for _, f := range filters {
			if f.Name == tagger(name).name {
				l.Tags = true
				s.Links[name] = l
			}
		}
	}
	return nil
}

func (k *kernel) readArrival(s State, tunnel string, b *netlink.BpfFilter) {
	words := strings.Fields(b.Name)
	if len(words) != 3 {
		return
	}
	at := Key{tunnel, words[0]}
	s.Arrivals[at] = words[1]
	if fmt.Sprint(k.index[words[1]]) != words[2] {
		s.Arrivals[at] += " (of before)"
	}
}
