package overlay

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dropProgram is a two-instruction XDP program that drops all it is given.
// On a bridge it is given what the bridge would hand to the host's own stack,
// and only that: frames between ports do not pass it. Without it a guest could
// talk to every service of the host, since Linux answers for all its addresses
// on every link. Firewall rules would do the same, but belong to the host's
// administrator, who may flush them; this lives and dies with the bridge.
type dropProgram struct{ fd int }

func loadDropProgram() (*dropProgram, error) {
	instructions := [2]uint64{
		0xb7 | 1<<32, // r0 = 1, XDP_DROP
		0x95,         // exit
	}
	licence := []byte("Apache-2.0\x00")
	load := struct {
		kind, count           uint32
		instructions, licence uint64
		logLevel, logSize     uint32
		logBuffer             uint64
		kernel, flags         uint32
		name                  [16]byte
	}{
		kind: unix.BPF_PROG_TYPE_XDP, count: uint32(len(instructions)),
		instructions: uint64(uintptr(unsafe.Pointer(&instructions))), licence: uint64(uintptr(unsafe.Pointer(&licence[0]))),
		name: [16]byte{'p', 'g', '_', 'd', 'r', 'o', 'p'},
	}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&load)), unsafe.Sizeof(load))
	runtime.KeepAlive(&instructions)
	runtime.KeepAlive(licence)
	if errno != 0 {
		return nil, fmt.Errorf("loading the filter that keeps guests away from this host's own network (the agent needs to be root): %w", errno)
	}
	return &dropProgram{fd: int(fd)}, nil
}

func (p *dropProgram) close() error { return unix.Close(p.fd) }
