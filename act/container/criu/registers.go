package criu

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"

	x86 "github.com/checkpoint-restore/go-criu/v8/crit/images/core-x86"
	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// ChangeRegisters has change alter the registers that an image has of a thread, given the thread's number inside. change reports whether it
// did. Only those of a call and its place are given. A thread in 32-bit mode is left alone.
func ChangeRegisters(images string, thread int, change func(*unix.PtraceRegs) bool) error {
	path := filepath.Join(images, fmt.Sprintf("core-%d.img", thread))
	var core criucore.CoreEntry
	if err := readImage(path, &core); err != nil {
		return err
	}
	r := core.GetThreadInfo().GetGpregs()
	if r == nil || r.GetMode() != x86.UserX86RegsMode_NATIVE {
		return nil
	}
	is := unix.PtraceRegs{
		Rip: r.GetIp(), Rax: r.GetAx(), Orig_rax: r.GetOrigAx(),
		Rdi: r.GetDi(), Rsi: r.GetSi(), Rdx: r.GetDx(), R10: r.GetR10(), R8: r.GetR8(), R9: r.GetR9(),
	}
	if !change(&is) {
		return nil
	}
	r.Ip, r.Ax, r.OrigAx = &is.Rip, &is.Rax, &is.Orig_rax
	r.Di, r.Si, r.Dx, r.R10, r.R8, r.R9 = &is.Rdi, &is.Rsi, &is.Rdx, &is.R10, &is.R8, &is.R9
	message, err := proto.Marshal(&core)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text = binary.LittleEndian.AppendUint32(text[:headBytes-4:headBytes-4], uint32(len(message)))
	return os.WriteFile(path, append(text, message...), 0o600)
}
