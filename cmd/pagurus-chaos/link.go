package main

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

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
		program, err := lossy()
		if err != nil {
			return nil, err
		}
		defer program.Close() // the link keeps it
		heal := func() error { return netlink.LinkSetXdpFdWithFlags(link, -1, unix.XDP_FLAGS_SKB_MODE) }
		return heal, netlink.LinkSetXdpFdWithFlags(link, program.FD(), unix.XDP_FLAGS_SKB_MODE)
	}
	return nil, fmt.Errorf("%s is no fault of a link", k)
}

// burst gives in the kernel's unit how long so many bytes take at a rate.
func burst(bytesPerSecond, bytes float64) uint32 {
	return netlink.Xmittime(uint64(bytesPerSecond), uint32(bytes))
}

// lossy loads a program that drops one frame in ten of what a host sends. Not
// every kernel has the queue that is made for that (netem), but every one that
// a lab runs on has this.
func lossy() (*ebpf.Program, error) {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "pg_lossy", Type: ebpf.XDP, License: "Apache-2.0",
		Instructions: asm.Instructions{
			asm.FnGetPrandomU32.Call(),
			asm.And.Imm(asm.R0, 0xff),
			asm.JLT.Imm(asm.R0, 26, "drop"),
			asm.Mov.Imm(asm.R0, 2), // XDP_PASS
			asm.Return(),
			asm.Mov.Imm(asm.R0, 1).WithSymbol("drop"), // XDP_DROP
			asm.Return(),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("loading the program that loses frames: %w", err)
	}
	return program, nil
}
