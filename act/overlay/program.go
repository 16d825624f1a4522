package overlay

import (
	"encoding/binary"
	"fmt"
	"net"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// program is a short program that the kernel runs on frames. Firewall rules could do part
// of it, but belong to the host's administrator, who may flush them. Programs exist as
// long as their links.
type program struct{ fd int }

// The instructions (kernel documentation, bpf/standardization/instruction-set):
// operation, registers, jump offset and constant.
func op(code, destination, source byte, jump int16, constant int32) uint64 {
	return uint64(code) | uint64(destination)<<8 | uint64(source)<<12 | uint64(uint16(jump))<<16 | uint64(uint32(constant))<<32
}

// Operations of instructions, and return codes for the kernel.
const (
	setConstant  = 0xb7 // destination = constant
	setRegister  = 0xbf // destination = source
	callKernel   = 0x85
	leave        = 0x95
	loadWord     = 0x20 // r0 = 4 bytes of the frame at constant; r6 is the frame
	loadHalf     = 0x28 // r0 = 2 bytes
	jumpIfNot    = 0x56 // if destination != constant, both 32 bits
	redirectCall = 23   // bpf_redirect(r1 link, r2 flags): send out by that link
	shot         = 2    // TC_ACT_SHOT: the frame is dropped
	carryOn      = -1   // TC_ACT_UNSPEC: continue as without the filter
)

// dropAll drops every frame.
func dropAll() []uint64 { return []uint64{op(setConstant, 0, 0, 0, shot), op(leave, 0, 0, 0, 0)} }

// redirect sends every frame out by another link.
func redirect(to int) []uint64 {
	return []uint64{
		op(setConstant, 1, 0, 0, int32(to)), op(setConstant, 2, 0, 0, 0), op(callKernel, 0, 0, 0, redirectCall), op(leave, 0, 0, 0, 0),
	}
}

// redirectOnly sends frames for one address out by another link.
func redirectOnly(mac net.HardwareAddr, to int) []uint64 {
	send := redirect(to)
	rest := int16(len(send))
	return append(append([]uint64{
		op(setRegister, 6, 1, 0, 0),
		op(loadWord, 0, 0, 0, 0), op(jumpIfNot, 0, 0, rest+2, int32(binary.BigEndian.Uint32(mac[:4]))),
		op(loadHalf, 0, 0, 0, 4), op(jumpIfNot, 0, 0, rest, int32(binary.BigEndian.Uint16(mac[4:]))),
	}, send...), op(setConstant, 0, 0, 0, carryOn), op(leave, 0, 0, 0, 0))
}

// loadProgram loads a filter for traffic control (tc-bpf(8)).
func loadProgram(name string, instructions []uint64) (*program, error) {
	licence := []byte("Apache-2.0\x00")
	load := struct {
		kind, count           uint32
		instructions, licence uint64
		logLevel, logSize     uint32
		logBuffer             uint64
		kernel, flags         uint32
		name                  [16]byte
	}{
		kind: unix.BPF_PROG_TYPE_SCHED_CLS, count: uint32(len(instructions)),
		instructions: uint64(uintptr(unsafe.Pointer(&instructions[0]))), licence: uint64(uintptr(unsafe.Pointer(&licence[0]))),
	}
	copy(load.name[:len(load.name)-1], name)
	fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&load)), unsafe.Sizeof(load))
	runtime.KeepAlive(instructions)
	runtime.KeepAlive(licence)
	if errno != 0 {
		return nil, fmt.Errorf("loading filter %s into the kernel (the agent needs to be root): %w", name, errno)
	}
	return &program{fd: int(fd)}, nil
}

func (p *program) close() error { return unix.Close(p.fd) }
