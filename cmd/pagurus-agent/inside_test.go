package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

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
	s.mustStayInItsJob(t, ends)
}

// mustStayInItsJob has the root of one host send bursts, from one port to another, of frames for the job that it has with the other
// host and for a job of that host alone. Of those none may arrive; without the gate they do.
func (s testbed) mustStayInItsJob(t *testing.T, ends [2]*wireguard.Device) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	shared := s.network(s[0], nil)
	foreign := shared
	foreign.Job, foreign.Subnet, foreign.Ports, foreign.Endpoints = "other", subnet+1, nil, slices.Clone(shared.Endpoints)
	for i := range foreign.Endpoints {
		foreign.Endpoints[i].Host, foreign.Endpoints[i].VTEP = "third", innerAddr(7).String()
	}
	networks := []fleet.Network{shared, foreign}
	for i := range networks {
		networks[i].MTU = fleet.EncryptedNetworkMTU
	}
	apply := func() {
		t.Helper()
		must(thread.In(s[0].host, func() error { return s[0].overlay.Apply(t.Context(), networks) }))
	}
	came := func(n fleet.Network) (packets uint64) {
		t.Helper()
		must(thread.In(s[0].host, func() error {
			link, err := netlink.LinkByName(n.Subnet.TunnelName())
			if err == nil {
				packets = link.Attrs().Statistics.RxPackets
			}
			return err
		}))
		return packets
	}
	apply()
	must(thread.In(s[1].host, func() error { return openGate(ends[1].Name()) }))
	const bursts = 50
	mine, theirs := came(shared), came(foreign)
	must(thread.In(s[1].host, func() error { return burst(ends[1].Name(), bursts, shared, foreign) }))
	testkit.Until(t, limit, "the frames of the job that both have arrive", func() bool { return came(shared) >= mine+bursts })
	time.Sleep(200 * time.Millisecond)
	if n := came(foreign) - theirs; n > 0 {
		t.Errorf("%d frames of another job arrived", n)
	}
	must(thread.In(s[0].host, func() error { return openGate(ends[0].Name()) }))
	must(thread.In(s[1].host, func() error { return burst(ends[1].Name(), bursts, shared, foreign) }))
	testkit.Until(t, limit, "frames arrive without the gate", func() bool { return came(foreign) > theirs })
	apply()
}

// openGate removes the gate of a link, as root may.
func openGate(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.QdiscDel(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0)}})
}

// burst sends frames for one network and another in turn, several in one call.
func burst(name string, times int, networks ...fleet.Network) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var payload []byte
	piece := 0
	for _, n := range slices.Concat(networks, networks, networks) {
		to, err := net.ParseMAC(n.Subnet.GuestMAC(0))
		if err != nil {
			return err
		}
		frame := binary.BigEndian.AppendUint32([]byte{8, 0, 0, 0}, uint32(n.Subnet.VNI())<<8)
		frame = append(append(frame, to...), 2, 0, 0, 0, 0, 9, 0x88, 0xb5)
		frame = append(frame, make([]byte, 200)...)
		payload, piece = append(payload, frame...), len(frame)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT, piece); err != nil {
		return err
	}
	at := &unix.SockaddrInet6{Port: overlay.DefaultPort, ZoneId: uint32(link.Attrs().Index), Addr: innerAddr(0).As16()}
	for range times {
		if err := unix.Sendto(fd, payload, 0, at); err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}
