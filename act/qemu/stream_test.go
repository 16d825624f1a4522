package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestPrepare(t *testing.T) {
	for packed, want := range map[bool]string{
		false: `"multifd","state":false`,
		true:  `"multifd","state":true`,
	} {
		said := ""
		err := prepareStream(t.Context(), func(_ context.Context, command string, args, _ any) error {
			text, err := json.Marshal(args)
			said += command + string(text)
			return err
		}, way{Packed: packed, Slow: !packed})
		if err != nil || !strings.Contains(said, want) || strings.Contains(said, "zstd") != packed || !strings.Contains(said, `"pause-before-switchover","state":true`) ||
			!strings.Contains(said, `"auto-converge","state":`+strconv.FormatBool(!packed)) || strings.Contains(said, "max-cpu-throttle") == packed || strings.Contains(said, `"multifd-channels":1,`) != packed {
			t.Errorf("packed %t: %v, it said %s", packed, err, said)
		}
		no := errors.New("no")
		if err := prepareStream(t.Context(), func(context.Context, string, any, any) error { return no }, way{Packed: packed}); !errors.Is(err, no) {
			t.Errorf("packed %t: a refusal came as %v", packed, err)
		}
	}
}

func TestPacks(t *testing.T) {
	text := filepath.Join(t.TempDir(), "qemu")
	if err := os.WriteFile(text, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, binary := range []string{text, self, "/nowhere"} {
		if packs(binary, "10.0.2") {
			t.Errorf("%s is said to compress", binary)
		}
	}
	for version, want := range map[string]int{"10.0.2": 10, "7.2": 7, "": 0, "x.1": 0} {
		if got := majorVersion(version); got != want {
			t.Errorf("version %q begins with %d", version, got)
		}
	}
}

// Compressed memory gets a lower limit, because QEMU exceeds it, but never 0.
func TestCeiling(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		packed bool
		most   int64
		want   int64
	}{{false, 20 * mib, 20 * mib}, {true, 24 * mib, 41 * mib / 2}, {true, 4 * mib, 2 * mib}, {true, 1 << 40, 1<<40 - 7*mib/2}} {
		if got := (way{Packed: c.packed}).Ceiling(c.most); got != c.want {
			t.Errorf("compressed %t: %d is told as %d, want %d", c.packed, c.most, got, c.want)
		}
	}
}

func TestAddress(t *testing.T) {
	// Where traffic is encrypted nothing is sent in clear, whatever a target says.
	for at, wants := range map[string]map[string]string{
		"192.0.2.1":    {"10.0.0.1:4444": "tcp:10.0.0.1:4444", "[fd00::1]:1": "tcp:[fd00::1]:1"},
		"fe80::1%ours": {"[fe80::2%theirs]:1": "tcp:[fe80::2%ours]:1", "10.0.0.1:4444": "", "[fd00::1]:1": "", "127.0.0.1:22": ""},
	} {
		var d Driver
		d.Readdress(netip.MustParseAddr(at))
		for _, in := range []string{"", "host:1", "10.0.0.1", "10.0.0.1:1,ipv4=on", "exec:sh", "10.0.0.1:99999", "unix:/x"} {
			wants[in] = ""
		}
		for in, want := range wants {
			got, err := d.streamAddress(in)
			if got != want || (err == nil) != (want != "") {
				t.Errorf("at %s %q became %q: %v", at, in, got, err)
			}
		}
	}
}
