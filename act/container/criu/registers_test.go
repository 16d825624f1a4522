package criu

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	x86 "github.com/checkpoint-restore/go-criu/v8/crit/images/core-x86"
	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// fillRequired gives each field that a message must have a value of its own.
func fillRequired(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.Cardinality() != protoreflect.Required:
		case f.Kind() == protoreflect.MessageKind:
			fillRequired(m.Mutable(f).Message())
		case f.Kind() == protoreflect.Uint64Kind:
			m.Set(f, protoreflect.ValueOfUint64(uint64(i+1)))
		case f.Kind() == protoreflect.Uint32Kind:
			m.Set(f, protoreflect.ValueOfUint32(uint32(i+1)))
		}
	}
}

// TestChangeRegisters: what is changed is in the image, and nothing else is other than before.
func TestChangeRegisters(t *testing.T) {
	image := func(mode x86.UserX86RegsMode) (folder string, core *criucore.CoreEntry) {
		core = &criucore.CoreEntry{Mtype: criucore.CoreEntry_X86_64.Enum(), ThreadInfo: &x86.ThreadInfoX86{}}
		fillRequired(core.ThreadInfo.ProtoReflect())
		core.ThreadInfo.Gpregs.Mode = mode.Enum()
		text, err := proto.Marshal(core)
		folder = t.TempDir()
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, "core-5.img"), append(binary.LittleEndian.AppendUint32(make([]byte, headBytes-4), uint32(len(text))), text...), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return folder, core
	}
	for name, c := range map[string]struct {
		mode   x86.UserX86RegsMode
		answer bool
		asked  bool
	}{
		"changed":          {x86.UserX86RegsMode_NATIVE, true, true},
		"left as it is":    {x86.UserX86RegsMode_NATIVE, false, true},
		"of a 32-bit call": {x86.UserX86RegsMode_COMPAT, true, false},
	} {
		folder, want := image(c.mode)
		path, asked := filepath.Join(folder, "core-5.img"), false
		before, _ := os.ReadFile(path)
		if err := ChangeRegisters(folder, 5, func(r *unix.PtraceRegs) bool {
			asked = r.Rip == want.ThreadInfo.Gpregs.GetIp() && r.Orig_rax == want.ThreadInfo.Gpregs.GetOrigAx()
			r.Rip, r.Rdi = 1<<40, 99
			return c.answer
		}); err != nil || asked != c.asked {
			t.Errorf("%s: asked with what is there: %t, %v", name, asked, err)
		}
		after, _ := os.ReadFile(path)
		if !c.asked || !c.answer {
			if !bytes.Equal(before, after) {
				t.Errorf("%s: the image is another", name)
			}
			continue
		}
		var got criucore.CoreEntry
		if err := readImage(path, &got); err != nil {
			t.Fatal(err)
		}
		want.ThreadInfo.Gpregs.Ip, want.ThreadInfo.Gpregs.Di = proto.Uint64(1<<40), proto.Uint64(99)
		if size := binary.LittleEndian.Uint32(after[headBytes-4:]); !proto.Equal(&got, want) || int(size) != len(after)-headBytes {
			t.Errorf("%s: %v, and its length is %d of %d", name, &got, size, len(after)-headBytes)
		}
	}
	if err := ChangeRegisters(t.TempDir(), 5, func(*unix.PtraceRegs) bool { return true }); err == nil {
		t.Error("a missing image gives no error")
	}
}
