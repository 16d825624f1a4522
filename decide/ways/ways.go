// Package ways decides how two hosts in different networks reach each other: where each may be called, who relays
// between two that do not reach each other directly, and which of several ways to a peer an agent takes.
//
// It must not know how a way is tried or measured: that is act/wireguard's.
package ways

import (
	"cmp"
	"hash/fnv"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"pagurus/fleet"
)

// apart reports whether a host calls the controller from another address than it says it has: NAT, or a second
// network.
func apart(h fleet.Host) bool {
	return h.Facts.From != "" && h.Facts.Address != "" && h.Facts.From != h.Facts.Address
}

// Together reports whether two hosts reach each other by the addresses that they say they have: they are in one
// site, neither is behind NAT, and both addresses are of IPv4 or both of IPv6. Of those behind one NAT nobody knows: who shares an address outside, as a provider's customers do, may
// share nothing else.
func Together(a, b fleet.Host) bool {
	return a.Facts.Site == b.Facts.Site && !apart(a) && !apart(b) && !otherFamily(a, b)
}

func otherFamily(a, b fleet.Host) bool {
	one, errOne := netip.ParseAddr(cmp.Or(a.Facts.Address, a.Address))
	other, errOther := netip.ParseAddr(cmp.Or(b.Facts.Address, b.Address))
	return errOne == nil && errOther == nil && one.Unmap().Is4() != other.Unmap().Is4()
}

// Usable reports whether a host may be called at an address, as far as the address tells: it is one host's, and others can reach
// it. What hosts say is sent to, so it must not be an address of many, or of the caller itself.
func Usable(at netip.Addr) bool {
	at = at.Unmap()
	if !at.IsValid() || at.IsUnspecified() || at.IsLoopback() || at.IsMulticast() || at.IsLinkLocalUnicast() || at.Zone() != "" {
		return false
	}
	const reserved = 240 // and from there on, with the address of all
	return !at.Is4() || at.As4()[0] != 0 && at.As4()[0] < reserved
}

// To lists where another host may be called, best first: in its own network, then where others see its port, and
// last where it calls from, as many routers leave ports as they are.
func To(b fleet.Host, end fleet.WireGuardEnd) []string {
	var all []string
	add := func(addr string) {
		if at, err := netip.ParseAddr(addr); err == nil && Usable(at) && end.Port != 0 {
			all = append(all, netip.AddrPortFrom(at, end.Port).String())
		}
	}
	add(cmp.Or(b.Facts.Address, b.Address))
	if w := b.Facts.WireGuard; w != nil {
		for i, at := range w.Mapped {
			if is, err := netip.ParseAddrPort(at); err == nil && i < mostMapped && Usable(is.Addr()) && is.Port() != 0 {
				all = append(all, is.String())
			}
		}
	}
	add(b.Facts.From)
	var out []string
	for _, at := range all {
		if !slices.Contains(out, at) {
			out = append(out, at)
		}
	}
	return out
}

// mostMapped is how many endpoints a host may say that it has: one for IPv4 and one for IPv6.
const mostMapped = 2

// Envoys names a host of each site, by site. Those of two sites are always connected, so that the path between
// the sites is known before a job needs it.
func Envoys(hosts map[fleet.HostID]fleet.Host) map[string]fleet.HostID {
	all := map[string]fleet.HostID{}
	for id, h := range hosts {
		f := &h.Facts
		if f.Site == "" || !f.Connected || f.WireGuard == nil || f.WireGuard.Key == "" || h.Number == 0 {
			continue
		}
		if has, some := all[f.Site]; !some || id < has {
			all[f.Site] = id
		}
	}
	return all
}

// Differ reports whether others must hear of what a host says of its ways.
func Differ(a, b fleet.Facts) bool {
	if a.From != b.From || a.Site != b.Site {
		return true
	}
	if a.WireGuard == nil || b.WireGuard == nil {
		return a.WireGuard != b.WireGuard
	}
	v, w := a.WireGuard, b.WireGuard
	if !slices.Equal(v.Mapped, w.Mapped) || !slices.Equal(v.Relayed, w.Relayed) || v.Relays != w.Relays || len(v.Paths) != len(w.Paths) {
		return true
	}
	for id, p := range v.Paths {
		if q, same := w.Paths[id]; !same || p.NeedsRelay != q.NeedsRelay || p.Dead != q.Dead || p.Relay != q.Relay || !slices.Equal(p.Silent, q.Silent) {
			return true
		}
	}
	return false
}

// Pair are two hosts, sorted.
type Pair [2]fleet.HostID

// PairOf sorts two hosts.
func PairOf(a, b fleet.HostID) Pair { return Pair{min(a, b), max(a, b)} }

// mostOfHost is how many pairs of one host are relayed: nobody else should go without because one says that it reaches nobody.
const mostOfHost = fleet.MostRelayed / 4

// Relays chooses who relays for each of some pairs: a host that both of them reach, near both. One
// that relays for a pair already stays, unless one of the two says that nothing comes. Where there are too many pairs, those that
// are relayed already go first.
func Relays(hosts map[fleet.HostID]fleet.Host, pairs []Pair) map[Pair]fleet.HostID {
	if len(pairs) == 0 {
		return nil
	}
	var able []fleet.HostID
	for id, h := range hosts {
		if w := h.Facts.WireGuard; h.Facts.Connected && w != nil && w.Relays && !apart(h) {
			able = append(able, id)
		}
	}
	slices.Sort(able)
	first := map[Pair]int{}
	for _, p := range pairs {
		first[p] = rankOther
		for _, r := range able {
			first[p] = min(first[p], rank(hosts, p, r))
		}
	}
	near := latencies(hosts)
	out, busy, of := map[Pair]fleet.HostID{}, map[fleet.HostID]int{}, map[fleet.HostID]int{}
	for _, p := range slices.SortedFunc(slices.Values(pairs), func(a, b Pair) int {
		return cmp.Or(cmp.Compare(first[a], first[b]), slices.Compare(a[:], b[:]))
	}) {
		if _, again := out[p]; again || of[p[0]] >= mostOfHost || of[p[1]] >= mostOfHost {
			continue
		}
		best := fleet.HostID("")
		for _, r := range able {
			if r == p[0] || r == p[1] || busy[r] >= fleet.MostRelayed {
				continue
			}
			if best == "" || better(hosts, near, p, r, best) {
				best = r
			}
		}
		if best != "" {
			out[p] = best
			busy[best]++
			of[p[0]]++
			of[p[1]]++
		}
	}
	return out
}

// better reports whether r should relay for a pair, and not other.
func better(hosts map[fleet.HostID]fleet.Host, near map[[2]string]time.Duration, p Pair, r, other fleet.HostID) bool {
	return cmp.Or(
		cmp.Compare(rank(hosts, p, r), rank(hosts, p, other)),
		cmp.Compare(around(hosts, near, p, r), around(hosts, near, p, other)),
		cmp.Compare(lot(p, r), lot(p, other)), // spreads the pairs
	) < 0
}

// The ranks of a relay for a pair: the pair goes by it, it has a port for the pair, or neither. From rankDead on nothing came by it lately.
const (
	rankUsed = iota
	rankReady
	rankOther
	rankDead
)

// rank puts first by whom the pair goes already, then who has a port for it, and last by whom nothing came; of those, the one that has
// had the longest to recover goes first, so that all get another try. While one of the two does not call it is no relay's fault that nothing comes.
func rank(hosts map[fleet.HostID]fleet.Host, p Pair, r fleet.HostID) int {
	now, silent := rankOther, -1
	both := hosts[p[0]].Facts.Connected && hosts[p[1]].Facts.Connected
	if slices.ContainsFunc(hosts[r].Facts.WireGuard.Relayed, func(has fleet.RelayPort) bool { return has.Hosts == p }) {
		now = rankReady
	}
	for i, id := range p {
		w := hosts[id].Facts.WireGuard
		if w == nil {
			continue
		}
		path := w.Paths[p[1-i]]
		known := path.Silent[max(0, len(path.Silent)-mostSilent):] // however many it says
		if n := slices.Index(known, r); n >= 0 {
			silent = max(silent, n)
		} else if path.Relay == r && path.Dead {
			silent = max(silent, len(known))
		}
		if path.Relay == r && now == rankReady {
			now = rankUsed
		}
	}
	if silent >= 0 && both {
		return rankDead + silent
	}
	return now
}

// mostSilent is how many relays by which nothing came count.
const mostSilent = 16

// unknownLatency is longer than any between two places on Earth.
const unknownLatency = time.Second

// around is how long a packet takes from one host of a pair to r and on to the other, and back.
func around(hosts map[fleet.HostID]fleet.Host, near map[[2]string]time.Duration, p Pair, r fleet.HostID) (sum time.Duration) {
	for _, id := range p {
		a, b := hosts[id].Facts.Site, hosts[r].Facts.Site
		if a == b {
			continue
		}
		if took := near[[2]string{min(a, b), max(a, b)}]; took > 0 {
			sum += took
		} else {
			sum += unknownLatency
		}
	}
	return sum
}

// latencies are the shortest that hosts measured between two sites.
func latencies(hosts map[fleet.HostID]fleet.Host) map[[2]string]time.Duration {
	out := map[[2]string]time.Duration{}
	for _, h := range hosts {
		if h.Facts.WireGuard == nil {
			continue
		}
		for to, p := range h.Facts.WireGuard.Paths {
			a, b := h.Facts.Site, hosts[to].Facts.Site
			key := [2]string{min(a, b), max(a, b)}
			if has, some := out[key]; p.Latency > 0 && (!some || p.Latency < has) {
				out[key] = p.Latency
			}
		}
	}
	return out
}

func lot(p Pair, r fleet.HostID) uint32 {
	h := fnv.New32a()
	for _, id := range []fleet.HostID{p[0], p[1], r} {
		_, _ = h.Write([]byte(strconv.Quote(string(id)))) // never fails
	}
	return h.Sum32()
}
