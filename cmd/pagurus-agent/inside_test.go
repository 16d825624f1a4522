package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"pagurus/act/container/shim"
	"pagurus/act/host/jail"
	"pagurus/act/overlay"
	"pagurus/act/share/handle"
	"pagurus/act/wireguard"
	"pagurus/fleet"
	"pagurus/internal/testkit"
	"pagurus/internal/thread"
)

// TestMain lets this program be wireguard-go, and the processes of a file server's jail.
func TestMain(m *testing.M) {
	shim.Become(wireguard.Shims, jail.Shims, handle.Shims)
	os.Exit(m.Run())
}

// Guests of two hosts reach each other where all that hosts send to each other goes through WireGuard: wireguard-go, and
// the kernel's where it has that.
func TestGuestsReachEachOtherInside(t *testing.T) {
	testkit.Leftovers(t)
	for _, goOnly := range []bool{true, false} {
		t.Run(fmt.Sprint("go ", goOnly), func(t *testing.T) { reachInside(t, goOnly) })
	}
}

func reachInside(t *testing.T, goOnly bool) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var s testbed
	for i := range s {
		s[i] = &place{name: fleet.HostID(fmt.Sprintf("host%d", i)), index: i, address: netip.AddrFrom4([4]byte{198, 18, 0, byte(1 + i)})}
		for _, of := range []**os.File{&s[i].host, &s[i].guest} {
			var err error
			*of, err = namespace()
			must(err)
		}
	}
	t.Cleanup(func() { _ = s.close() })
	must(s.join())
	outside := [2]netip.Addr{s[0].address, s[1].address}
	var ends [2]*wireguard.Device
	for i, p := range s {
		must(thread.In(p.host, func() (err error) {
			ends[i], err = wireguard.Open(wireguard.Config{Run: t.TempDir(), State: t.TempDir(), Program: "/proc/self/exe", GoOnly: goOnly})
			return err
		}))
		t.Cleanup(func() {
			if err := thread.In(p.host, ends[i].Remove); err != nil {
				t.Error(err)
			}
			_ = ends[i].Close()
		})
	}
	for i, p := range s {
		p.address = innerAddr(i)
		other := fleet.WireGuardPeer{Host: "other", Key: ends[1-i].End().Key, Address: innerAddr(1 - i), Endpoint: netip.AddrPortFrom(outside[1-i], ends[1-i].End().Port).String()}
		w := fleet.WireGuard{Address: innerAddr(i), MTU: fleet.WireGuardMTU, Peers: []fleet.WireGuardPeer{other}}
		must(thread.In(p.host, func() error { return ends[i].Apply(ctx, w) }))
		t.Logf("%s: by %s", p.name, ends[i].Protection())
	}
	for i, p := range s {
		n := s.network(p, nil)
		n.MTU = fleet.EncryptedNetworkMTU
		must(thread.In(p.host, func() (err error) {
			if p.overlay, err = overlay.Open(overlay.Config{Host: p.name, Address: innerAddr(i).WithZone(ends[i].Name())}); err != nil {
				return err
			}
			return p.overlay.Apply(ctx, []fleet.Network{n})
		}))
		must(p.plug())
	}
	must(s.exchange(ctx))
}
