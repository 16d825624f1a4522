package sandbox

import (
	"testing"

	"golang.org/x/sys/unix"
)

// run gives a filter's answer to a system call, as the kernel would.
func run(t *testing.T, p []unix.SockFilter, call uintptr, arguments ...uint32) uint32 {
	t.Helper()
	data := map[uint32]uint32{atCall: uint32(call), atArchitecture: architecture}
	for i, a := range arguments {
		data[atArgument+8*uint32(i)] = a
	}
	var loaded uint32
	for i := 0; i < len(p); i++ {
		s, met := p[i], false
		switch s.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			loaded = data[s.K]
			continue
		case unix.BPF_RET | unix.BPF_K:
			return s.K
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			met = loaded == s.K
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			met = loaded >= s.K
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			met = loaded&s.K != 0
		default:
			t.Fatalf("step %d has the code %x", i, s.Code)
		}
		if met {
			i += int(s.Jt)
		} else {
			i += int(s.Jf)
		}
	}
	t.Fatal("the filter has no end")
	return 0
}

// TestNoNewerMemory: of all kinds of memory programs may make those that Debian 12's kernel (6.1)
// knows, with any flags and advice, so that containers move to such a host. Others do not exist
// for them.
func TestNoNewerMemory(t *testing.T) {
	p := program()
	for kind := range uint32(unix.MAP_TYPE + 1) {
		want := uint32(answerAllow)
		if kind&mapDroppable != 0 {
			want = answerOf(unix.EINVAL)
		}
		for bit := range 28 { // the flags, of which the kernel ignores those that it does not know
			if got := run(t, p, unix.SYS_MMAP, 0, 4096, unix.PROT_READ, kind|16<<bit); got != want {
				t.Errorf("mmap of the kind %x with the flag %x: %x", kind, 16<<bit, got)
			}
		}
	}
	const newest = 25 // MADV_COLLAPSE, of Linux 6.1
	for advice := range uint32(200) {
		got := run(t, p, unix.SYS_MADVISE, 0, 4096, advice)
		if advice <= newest && got != answerAllow || advice == 102 && got != answerOf(unix.EINVAL) {
			t.Errorf("madvise %d: %x", advice, got)
		}
	}
}
