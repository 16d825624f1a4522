package desired

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"pagurus/fleet"
)

// end is what is known of a host's WireGuard device: what it last reported, or what is stored.
func end(h fleet.Host) fleet.WireGuardEnd {
	if w := h.Facts.WireGuard; w != nil && w.Key != "" {
		return w.WireGuardEnd
	}
	return h.WireGuard
}

// wireGuard is what a host's WireGuard device should be; nil: nothing is encrypted. A host without a number gets no
// address, so that it makes no device, and sends nothing. Its peers are the hosts that have a job with it, also those that a guest moves
// to or from. Others have nothing to tell it, and the fewer can send to it, the better.
func (a *State) wireGuard(host fleet.HostID) *fleet.WireGuard {
	e := a.s.Cluster.Encryption
	if !e.On() {
		return nil
	}
	w := &fleet.WireGuard{Address: fleet.WireGuardAddr(a.s.Hosts[host].Number), MTU: fleet.WireGuardMTU, KernelOnly: e == fleet.WireGuardOnly}
	with := map[fleet.HostID]bool{}
	for _, job := range a.jobs[host] {
		for _, other := range a.on[job] {
			with[other] = other != host
		}
	}
	for _, id := range slices.Sorted(maps.Keys(with)) {
		if h, known := a.s.Hosts[id]; known && with[id] && end(h).Key != "" && h.Number != 0 {
			w.Peers = append(w.Peers, fleet.WireGuardPeer{Host: id, Key: end(h).Key, Address: fleet.WireGuardAddr(h.Number), Endpoint: endpoint(h)})
		}
	}
	return w
}

// endpoint is where a host's WireGuard device is called: at its address on the network that hosts
// share. Hosts behind NAT will have others.
func endpoint(h fleet.Host) string {
	at, err := netip.ParseAddr(underlay(h))
	if err != nil {
		return ""
	}
	return netip.AddrPortFrom(at, end(h).Port).String()
}

// Barred returns a host's facts as they count in a cluster: one that cannot encrypt as the cluster
// wants can run no guests.
func Barred(f fleet.Facts, c fleet.Cluster) fleet.Facts {
	why := ""
	switch w := f.WireGuard; {
	case !c.Encryption.On():
	case w == nil:
		why = fmt.Sprintf("the cluster encrypts traffic between hosts, and the agent here is too old for that: upgrade it, or start the controller with --%s %s", fleet.EncryptionFlag, fleet.NoEncryption)
	case w.Trouble != "":
		why = w.Trouble
	case w.Key == "":
		why = "its agent has no WireGuard key: start it again"
	}
	if why == "" {
		return f
	}
	abilities := map[fleet.Kind]fleet.Abilities{}
	for kind, able := range f.Abilities {
		able.Trouble = cmp.Or(able.Trouble, why)
		abilities[kind] = able
	}
	f.Abilities = abilities
	if !slices.ContainsFunc(f.Troubles, func(t string) bool { return strings.Contains(t, why) }) {
		f.Troubles = append(slices.Clone(f.Troubles), why)
	}
	return f
}
