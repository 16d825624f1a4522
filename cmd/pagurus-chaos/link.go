package main

import (
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"

	"pagurus/act/badlink"
	"pagurus/fleet"
)

// port is the bridge's end of a lab host's link.
func port(host fleet.HostID) (netlink.Link, error) {
	name := "pglab" + strings.TrimPrefix(string(host), "host")
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("looking for the link of %s: %w", host, err)
	}
	return link, nil
}

// A slowed link carries a few guests' worth of memory a second, shared by all moves, with a
// cheap switch's queue.
const (
	slowBytesPerSecond = 12 << 20
	slowQueueBytes     = 512 << 10
	slowBurstBytes     = 128 << 10
)

// lostShare is the share of a host's traffic that a lossy link loses.
const lostShare = 0.1

// impair impairs a host's link by a kind of fault, until heal is called.
func impair(k kind, host fleet.HostID) (heal func() error, err error) {
	link, err := port(host)
	if err != nil {
		return nil, err
	}
	switch k {
	case linkCut:
		return func() error { return netlink.LinkSetUp(link) }, netlink.LinkSetDown(link)
	case linkSlow:
		slow := &netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
			Rate:       slowBytesPerSecond, Limit: slowQueueBytes, Buffer: burst(slowBytesPerSecond, slowBurstBytes),
		}
		return func() error { return netlink.QdiscDel(slow) }, netlink.QdiscReplace(slow)
	case linkLossy:
		name := link.Attrs().Name
		return func() error { return badlink.Lose(name, 0) }, badlink.Lose(name, lostShare)
	}
	return nil, fmt.Errorf("%s is not a fault of a link", k)
}

// burst gives the time for bytes at a rate, in the kernel's unit.
func burst(bytesPerSecond, bytes float64) uint32 {
	return netlink.Xmittime(uint64(bytesPerSecond), uint32(bytes))
}
