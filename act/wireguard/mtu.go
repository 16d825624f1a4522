package wireguard

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// mostMTU is what a message of wireguard-go carries at most.
const mostMTU = 1<<16 - 1 - fleet.WireGuardAdds

// mtu is how large packets inside may be. Each costs the device much the same, so moves, which are streams, are sent in packets as large as
// the links to all peers carry: TCP never sends larger ones than the other side says that it takes. Frames of guests do not change. A peer
// that is not on a link of this host is behind links that it knows nothing of: they may carry less, and not say so.
func (d *Device) mtu(w fleet.WireGuard) int {
	carry := mostMTU
	for _, p := range w.Peers {
		at, err := netip.ParseAddrPort(p.Endpoint)
		if err != nil || len(p.Ways) > 0 {
			return w.MTU
		}
		carry = min(carry, d.carries(at.Addr())-fleet.WireGuardAdds)
	}
	if len(w.Peers) == 0 {
		return w.MTU
	}
	return max(w.MTU, carry)
}

// carries is the largest packet that the link to a neighbour takes; 0: it is no neighbour, or nothing is known.
func (d *Device) carries(neighbour netip.Addr) int {
	if neighbour.IsLinkLocalUnicast() { // on which link is not known here
		return 0
	}
	routes, err := d.links.RouteGet(neighbour.Unmap().AsSlice())
	if err != nil || len(routes) != 1 || len(routes[0].Gw) > 0 || routes[0].Via != nil || routes[0].Type != unix.RTN_UNICAST {
		return 0
	}
	link, err := d.links.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return 0
	}
	if m := routes[0].MTU; m > 0 {
		return min(m, link.Attrs().MTU)
	}
	return link.Attrs().MTU
}
