package main

import (
	"net/netip"

	"pagurus/act/machine"
)

// address is the host's now. When a lease has ended or a laptop has moved, it is the one that
// the controller is called from, and drivers and tunnels go on there: a host that kept its first
// address would be refused for ever.
func (h *host) address() netip.Addr {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.calls == nil {
		return h.at
	}
	now := h.calls()
	if !follows(h.at, now, machine.Has) {
		return h.at
	}
	h.log.Warn("this host has another address now", "address", now, "was", h.at)
	h.at = now
	if !h.guard.on() { // else the other hosts learn where to call WireGuard, and nothing else changes
		h.toAddress(now, now)
	}
	return now
}

// follows reports whether a host at an address goes on at the one that it called from now. A host that has addresses of both families
// calls now by one and now by the other: it keeps its address as long as it has it.
func follows(at, now netip.Addr, has func(netip.Addr) bool) bool {
	switch {
	case !now.IsValid() || now == at || now.IsLinkLocalUnicast() || now.IsLoopback():
		return false
	case now.Is4() == at.Is4() || at.IsLoopback():
		return true
	}
	return !has(at)
}

// readdress has tunnels end and guests be received at addresses inside WireGuard; not valid: at the host's own.
func (h *host) readdress(tunnels, sockets netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !tunnels.IsValid() {
		tunnels, sockets = h.at, h.at
	}
	h.toAddress(tunnels, sockets)
}

func (h *host) toAddress(tunnels, sockets netip.Addr) {
	h.in.Readdress(sockets)
	h.network.Readdress(tunnels)
	for _, d := range h.drivers() {
		d.Readdress(sockets)
	}
}
