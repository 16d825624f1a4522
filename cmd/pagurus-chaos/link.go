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

// What a link is slowed down to: some guests' worth of memory a second shared
// by all moves, and a queue as a cheap switch has it.
const (
	slowBytesPerSecond = 12 << 20
	slowQueueBytes     = 512 << 10
	slowBurstBytes     = 128 << 10
)

// lostShare is how much of what a host sends is lost on a lossy link.
const lostShare = 0.1

// impair does to a host's link what a kind of fault is, until heal is called.
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
	return nil, fmt.Errorf("%s is no fault of a link", k)
}

// burst gives in the kernel's unit how long so many bytes take at a rate.
func burst(bytesPerSecond, bytes float64) uint32 {
	return netlink.Xmittime(uint64(bytesPerSecond), uint32(bytes))
}
