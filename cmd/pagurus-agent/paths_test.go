package main

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"pagurus/act/wireguard"
	"pagurus/decide/ways"
	"pagurus/fleet"
)

// What was silent is remembered for a while, once each time, and until something comes.
func TestSilentWaysAreRemembered(t *testing.T) {
	start := time.Unix(1e9, 0)
	direct, relay := netip.MustParseAddrPort("203.0.113.1:4711"), netip.MustParseAddrPort("198.51.100.1:7470")
	f := &far{silent: map[netip.AddrPort]time.Time{}, dead: map[fleet.HostID]time.Time{}}
	by := func(host fleet.HostID, since time.Time) {
		f.peer.Relay, f.relay, f.relayed = &fleet.WireGuardRelay{Host: host}, relay, since
	}
	says := func(when string, want ...fleet.HostID) {
		t.Helper()
		if !slices.Equal(f.path.Silent, want) {
			t.Errorf("%s it says %v, wanted %v", when, f.path.Silent, want)
		}
	}
	dead := ways.Choice{NeedsRelay: true, Dead: true}
	by("r1", start)
	f.remember(dead, start.Add(time.Second))
	by("r2", start.Add(2*time.Second))
	f.remember(dead, start.Add(3*time.Second))
	f.remember(dead, start.Add(4*time.Second))
	says("after two", "r1", "r2")
	by("r1", start.Add(5*time.Second))
	f.remember(dead, start.Add(6*time.Second))
	says("after the first again", "r2", "r1")
	f.count(wireguard.Seen{Endpoint: relay, Received: 1}, start.Add(7*time.Second))
	f.remember(ways.Choice{NeedsRelay: true}, start.Add(7*time.Second))
	says("when something comes", "r2")
	f.forget(start.Add(3*time.Second + ways.SilentFor + 1))
	f.remember(ways.Choice{}, start.Add(3*time.Second+ways.SilentFor+1))
	says("later")

	now := start
	step := func(at netip.AddrPort, sent, received int64) time.Time {
		now = now.Add(time.Second)
		f.count(wireguard.Seen{Endpoint: at, Sent: sent, Received: received}, now)
		return f.unheard
	}
	step(direct, 1, 1)
	if !step(direct, 1, 1).IsZero() {
		t.Error("where nothing is sent nothing can come")
	}
	if since := step(direct, 2, 1); since != now || step(direct, 3, 1) != since {
		t.Error("since when nothing comes is forgotten")
	}
	f.remember(ways.Choice{Silent: true}, now)
	if _, silent := f.silent[direct]; !silent {
		t.Error("a silent way is forgotten")
	}
	if !step(relay, 4, 1).IsZero() {
		t.Error("another way is silent at once")
	}
	if step(relay, 5, 1).IsZero() || !step(relay, 6, 2).IsZero() {
		t.Error("what comes does not count")
	}
	if _, silent := f.silent[direct]; !silent {
		t.Error("what comes on another way counts for this")
	}
	step(direct, 7, 2)
	step(direct, 8, 3)
	if _, silent := f.silent[direct]; silent {
		t.Error("a way on which something comes is silent")
	}
}
