package host

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
)

// Address is this host's own. It may change while drivers are open: laptops move, and leases
// of addresses end. What listens already goes on at the old one.
type Address struct{ now atomic.Pointer[netip.Addr] }

// Readdress sets it.
func (a *Address) Readdress(to netip.Addr) { a.now.Store(&to) }

// Toward is where a peer listens, as this host calls it. A link-local address is reached by the link
// of this host's own; what the peer calls its link means nothing here.
// A host that is reached inside WireGuard calls others only there.
func (a *Address) Toward(peer netip.AddrPort) (netip.AddrPort, error) {
	here := a.Here()
	switch inside := peer.Addr().IsLinkLocalUnicast(); {
	case inside:
		return netip.AddrPortFrom(peer.Addr().WithZone(here.Zone()), peer.Port()), nil
	case here.IsLinkLocalUnicast():
		return netip.AddrPort{}, fmt.Errorf("the other host listens at %s, which is reached in clear, and this cluster encrypts: upgrade its agent", peer)
	}
	return peer, nil
}

// Here is the present one; not valid before the first Readdress.
func (a *Address) Here() netip.Addr {
	if now := a.now.Load(); now != nil {
		return *now
	}
	return netip.Addr{}
}

// Again is the place of an earlier listener now. A stored one names its link by a number, which is another link's if the device was made
// again since.
func Again(earlier netip.AddrPort, here netip.Addr) netip.AddrPort {
	if earlier.Addr().WithZone("") != here.WithZone("") {
		return earlier
	}
	return netip.AddrPortFrom(here, earlier.Port())
}

// Listen opens a listener for a guest that moves here, and returns where it is. Port 0 stands for any that is free.
func Listen(ctx context.Context, at netip.AddrPort) (net.Listener, netip.AddrPort, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(false) // a connection has one other end
	l, err := config.Listen(ctx, "tcp", at.String())
	if err != nil {
		return nil, at, fmt.Errorf("listen for the guest: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	return l, netip.AddrPortFrom(at.Addr(), uint16(port)), nil
}
