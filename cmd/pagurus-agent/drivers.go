package main

import (
	"context"
	"log/slog"
	"net/netip"

	"pagurus/act/cgroup"
	"pagurus/act/container/shim"
	"pagurus/act/xen"
	"pagurus/cmd/roles"
	"pagurus/fleet"
	"pagurus/serve/agent"
)

// openDomains opens the driver of a Xen host's domains, and reports whether it did. Then guests are of no other kind here: the first domain,
// in which they would be, has little of the host's memory, and no KVM.
func (h *host) openDomains(ctx context.Context, guest string, address netip.Addr, log *slog.Logger) bool {
	f := h.flags
	if !f.OnXen() {
		return false
	}
	d, err := xen.Open(ctx, xen.Config{
		Run: f.RunDir, Shim: shim.Daemon(), GuestAgent: guest, Address: address, MaxBandwidth: f.Bandwidth, Slice: h.slicePolicy(true).Base,
		ImageFolder: h.images.Ensure, Converged: agent.Converged, Log: log,
	})
	if err != nil {
		h.xenErr = err.Error()
		log.Warn("no guests of Xen here", "cause", err)
		if why := cgroup.SlicesMissing(); why != "" && f.Slice != (roles.Slice{}) {
			log.Warn("--slice has no effect on guests of other kinds", "cause", why)
		}
		return false
	}
	const others = "this is a Xen host, whose guests are domains: use --kind xen"
	h.xen, h.vmErr, h.containerErr = d, others, others
	return true
}

// driver is what each kind of guest is run by.
type driver interface {
	agent.Driver
	Readdress(netip.Addr)
	Close() error
}

// drivers are those that were opened.
func (h *host) drivers() map[fleet.Kind]driver {
	all := map[fleet.Kind]driver{}
	for _, each := range []struct {
		kind   fleet.Kind
		opened bool
		driver driver
	}{{fleet.VM, h.vm != nil, h.vm}, {fleet.Container, h.container != nil, h.container}, {fleet.Xen, h.xen != nil, h.xen}} {
		if each.opened {
			all[each.kind] = each.driver
		}
	}
	return all
}

// capacity is what guests may have here.
func (h *host) capacity() fleet.Resources {
	all := fleet.Resources{CPUs: len(h.usable()), MemoryBytes: h.machine.MemoryBytes - min(memoryReserve, h.machine.MemoryBytes/2)}
	if h.flags.Small {
		all.MemoryBytes = min(all.MemoryBytes, h.room)
	}
	if h.xen != nil {
		all = h.xen.Room()
	}
	if h.flags.Memory > 0 {
		all.MemoryBytes = h.flags.Memory
	}
	return all
}
