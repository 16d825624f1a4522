package desired

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"pagurus/decide/ways"
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
// address, so that it makes no device, and sends nothing.
func (a *State) wireGuard(host fleet.HostID) *fleet.WireGuard {
	e := a.s.Cluster.Encryption
	if !e.On() {
		return nil
	}
	h := a.s.Hosts[host]
	w := &fleet.WireGuard{Address: fleet.WireGuardAddr(h.Number), MTU: fleet.WireGuardMTU, KernelOnly: e == fleet.WireGuardOnly}
	a.chooseRelays()
	for _, id := range a.peers(host) {
		w.Peers = append(w.Peers, a.peer(h, a.s.Hosts[id]))
	}
	for pair, by := range a.relays {
		if by == host {
			keys := [2]string{end(a.s.Hosts[pair[0]]).Key, end(a.s.Hosts[pair[1]]).Key}
			w.Relays = append(w.Relays, fleet.RelayPair{Hosts: pair, Keys: keys})
		}
	}
	slices.SortFunc(w.Relays, func(a, b fleet.RelayPair) int { return slices.Compare(a.Hosts[:], b.Hosts[:]) })
	return w
}

// wires reports whether a host has to do with other hosts' encrypted traffic: it stands for its site, or relays.
func (a *State) wires(host fleet.HostID) bool {
	if !a.s.Cluster.Encryption.On() {
		return false
	}
	a.chooseEnvoys()
	a.chooseRelays()
	return a.stands[host] || a.relaying[host]
}

func (a *State) chooseEnvoys() {
	if a.envoys != nil {
		return
	}
	a.envoys, a.stands = ways.Envoys(a.s.Hosts), map[fleet.HostID]bool{}
	for _, host := range a.envoys {
		a.stands[host] = true
	}
}

// peers are the hosts that have a job with a host, also those that a guest moves to or from; those whose vault it uses now,
// or that use its own; and if it stands for its site,
// those that stand for others. Others have nothing to tell it, and the fewer can send to it, the better.
func (a *State) peers(host fleet.HostID) []fleet.HostID {
	with := map[fleet.HostID]bool{}
	for _, job := range a.jobs[host] {
		for _, other := range a.on[job] {
			with[other] = true
		}
	}
	for _, other := range a.partners[host] {
		with[other] = true
	}
	a.chooseEnvoys()
	if site := a.s.Hosts[host].Facts.Site; site != "" && a.envoys[site] == host {
		for _, other := range a.envoys {
			with[other] = true
		}
	}
	delete(with, host)
	return slices.DeleteFunc(slices.Sorted(maps.Keys(with)), func(id fleet.HostID) bool {
		h, known := a.s.Hosts[id]
		return !known || end(h).Key == "" || h.Number == 0
	})
}

// peer is a host as another should know it.
func (a *State) peer(of, h fleet.Host) fleet.WireGuardPeer {
	p := fleet.WireGuardPeer{Host: h.ID, Key: end(h).Key, Address: fleet.WireGuardAddr(h.Number), Endpoint: endpoint(h)}
	if ways.Together(of, h) {
		return p
	}
	p.Ways = ways.To(h, end(h))
	pair := ways.PairOf(of.ID, h.ID)
	by, some := a.relays[pair]
	if w := a.s.Hosts[by].Facts.WireGuard; some && w != nil {
		at, err := netip.ParseAddr(underlay(a.s.Hosts[by]))
		for _, has := range w.Relayed {
			if err == nil && has.Hosts == pair {
				p.Relay = &fleet.WireGuardRelay{Host: by, Endpoint: netip.AddrPortFrom(at, has.Port).String(), Key: end(a.s.Hosts[by]).Key}
			}
		}
	}
	return p
}

// chooseRelays chooses who relays for the pairs of peers where one says that it does not reach the other.
// What a host said last counts while no controller hears from it, too: a job that both have goes on.
func (a *State) chooseRelays() {
	if a.relays != nil {
		return
	}
	a.relays = map[ways.Pair]fleet.HostID{}
	pairs := map[ways.Pair]bool{}
	for id, h := range a.s.Hosts {
		if h.Facts.WireGuard == nil {
			continue
		}
		var peers []fleet.HostID
		for other, path := range h.Facts.WireGuard.Paths {
			if !path.NeedsRelay {
				continue
			}
			if peers == nil {
				peers = a.peers(id)
			}
			if slices.Contains(peers, other) {
				pairs[ways.PairOf(id, other)] = true
			}
		}
	}
	maps.Copy(a.relays, ways.Relays(a.s.Hosts, slices.Collect(maps.Keys(pairs))))
	a.relaying = map[fleet.HostID]bool{}
	for _, host := range a.relays {
		a.relaying[host] = true
	}
}

// endpoint is where a host's WireGuard device is called: at its address on the network that hosts
// share. Those in other networks get its ways.
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
