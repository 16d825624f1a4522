package criu

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fown"
	skinet "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-inet"
	skopts "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-opts"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// The address goes from sockets alone that have got it by connecting, and nothing else changes.
func TestAddressesByConnecting(t *testing.T) {
	words := func(text string) (out []uint32) {
		raw := netip.MustParseAddr(text).AsSlice()
		for ; len(raw) > 0; raw = raw[4:] {
			out = append(out, binary.NativeEndian.Uint32(raw))
		}
		return out
	}
	none := uint64(0)
	number := func(n uint32) *uint32 { return &n }
	for _, c := range []struct {
		name, at      string
		family, state uint32
		only, changes bool
	}{
		{"connected", "::1", unix.AF_INET6, connected, false, true},
		{"bound, then connected", "::1", unix.AF_INET6, connected, true, false},
		{"bound", "::1", unix.AF_INET6, 7, false, false},
		{"half-closed", "::1", unix.AF_INET6, 8, false, false},
		{"of IPv4", "::ffff:127.0.0.1", unix.AF_INET6, connected, false, false},
		{"another", "127.0.0.1", unix.AF_INET, connected, false, false},
	} {
		s := skinet.InetSkEntry{
			Id: number(7), Ino: number(8), Family: &c.family, Type: number(1), Proto: number(6), State: &c.state, SrcPort: number(4000), DstPort: number(5000), Flags: number(2), Backlog: number(0),
			SrcAddr: words(c.at), DstAddr: words(c.at), V6Only: &c.only,
			Fown: &fown.FownEntry{Uid: number(0), Euid: number(0), Signum: number(0), PidType: number(0), Pid: number(0)},
			Opts: &skopts.SkOptsEntry{SoSndbuf: number(1), SoRcvbuf: number(1), SoSndTmoSec: &none, SoSndTmoUsec: &none, SoRcvTmoSec: &none, SoRcvTmoUsec: &none},
		}
		raw, err := proto.Marshal(&s)
		if err != nil {
			t.Fatal(err)
		}
		entry := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 3)
		entry = protowire.AppendBytes(protowire.AppendTag(entry, fileInternet, protowire.BytesType), raw)
		out, err := namedLate(entry)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if !c.changes {
			if !bytes.Equal(out, entry) {
				t.Errorf("%s: it is changed", c.name)
			}
			continue
		}
		s.SrcAddr = words("::")
		raw, _ = proto.Marshal(&s)
		want := protowire.AppendBytes(protowire.AppendTag(entry[:2:2], fileInternet, protowire.BytesType), raw)
		if !bytes.Equal(out, want) {
			t.Errorf("%s: %x, not %x", c.name, out, want)
		}
		if _, err := namedLate(entry[:len(entry)-3]); err == nil {
			t.Errorf("%s: half of it is taken for whole", c.name)
		}
	}
}
