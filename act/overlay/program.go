package overlay

import (
	"encoding/binary"
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// A filter is a short program that the kernel runs on frames. Firewall rules could do part
// of it, but belong to the host's administrator, who may flush them. Programs exist as
// long as their links.

// Results of programs (TC_ACT_*).
const (
	shot    = 2  // the frame is dropped
	carryOn = -1 // continue as without the filter
)

// dropAll drops every frame.
func dropAll() asm.Instructions { return asm.Instructions{asm.Mov.Imm(asm.R0, shot), asm.Return()} }

// redirect sends every frame out by another link.
func redirect(to int) asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R1, int32(to)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(), asm.Return()}
}

// redirectOnly sends frames for one address out by another link.
func redirectOnly(mac net.HardwareAddr, to int) asm.Instructions {
	const rest = "rest"
	code := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1), // where LoadAbs looks for the frame
		asm.LoadAbs(0, asm.Word), asm.JNE.Imm32(asm.R0, int32(binary.BigEndian.Uint32(mac[:4])), rest),
		asm.LoadAbs(4, asm.Half), asm.JNE.Imm32(asm.R0, int32(binary.BigEndian.Uint16(mac[4:])), rest),
	}
	return append(append(code, redirect(to)...), asm.Mov.Imm(asm.R0, carryOn).WithSymbol(rest), asm.Return())
}

// loadProgram loads a filter for traffic control (tc-bpf(8)).
func loadProgram(code asm.Instructions) (*ebpf.Program, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "pg_filter", Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: code})
	if err != nil {
		return nil, fmt.Errorf("loading a filter into the kernel (the agent needs to be root): %w", err)
	}
	return p, nil
}
