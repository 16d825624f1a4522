package badlink

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Where the parts of a frame are that has an IPv4 packet.
const (
	atEtherType = 12
	atIP        = 14
	atProtocol  = 23
)

// Block makes a link drop incoming packets to and from a TCP port, of IPv4, in place of all
// that it dropped before; with port 0 it drops nothing. The sender is not told.
func Block(name string, port uint16) error {
	return with(name, "drop what is for a port", func(link netlink.Link) error {
		if err := absent(netlink.QdiscDel(hook(link))); err != nil {
			return fmt.Errorf("having it drop nothing: %w", err)
		}
		if port == 0 {
			return nil
		}
		return filter(link, "pg_block", asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1), // where loads from a packet expect it
			asm.LoadAbs(atEtherType, asm.Half),
			asm.JNE.Imm(asm.R0, unix.ETH_P_IP, "other"),
			asm.LoadAbs(atProtocol, asm.Byte),
			asm.JNE.Imm(asm.R0, unix.IPPROTO_TCP, "other"),
			asm.LoadAbs(atIP, asm.Byte),
			asm.And.Imm(asm.R0, 0xf), // the header's length in words
			asm.LSh.Imm(asm.R0, 2),
			asm.Mov.Reg(asm.R7, asm.R0),
			asm.LoadInd(asm.R0, asm.R7, atIP, asm.Half),
			asm.JEq.Imm(asm.R0, int32(port), "blocked"),
			asm.LoadInd(asm.R0, asm.R7, atIP+2, asm.Half),
			asm.JEq.Imm(asm.R0, int32(port), "blocked"),
			asm.Mov.Imm(asm.R0, carryOn).WithSymbol("other"),
			asm.Return(),
			asm.Mov.Imm(asm.R0, shot).WithSymbol("blocked"),
			asm.Return(),
		})
	})
}

// filter hangs a program on a link's incoming packets.
func filter(link netlink.Link, name string, program asm.Instructions) error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: program})
	if err != nil {
		return fmt.Errorf("load the filter: %w", err)
	}
	defer p.Close() // the link keeps it loaded
	err = netlink.QdiscAdd(hook(link))
	if err == nil {
		err = netlink.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
			Fd:          p.FD(), Name: name, DirectAction: true,
		})
	}
	if err != nil {
		return fmt.Errorf("hanging a filter on it: %w", err)
	}
	return nil
}
