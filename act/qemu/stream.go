// This file sets up how a guest's memory goes from one QEMU to another:
// what source and target have to agree on before either begins.
//
// It must not know when compressing pays: it is told. Its tests are of what it
// tells QEMU; that guests arrive is shown by the driver's, in real QEMUs.

package qemu

import (
	"context"
	"debug/elf"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"pagurus/fleet"
)

// streamDo says something to QEMU.
type streamDo func(ctx context.Context, command string, args, out any) error

// yank has QEMU give up the connections of its migration, also while it answers
// nothing else; urge says something to it out of band.
func yank(ctx context.Context, urge func(ctx context.Context, command string, args any) error) error {
	return urge(ctx, "yank", map[string]any{"instances": []map[string]string{{"type": "migration"}}})
}

// channels is how many connections compressed memory goes over, each with a
// thread that compresses and one that restores it. With more than one QEMU (10.0)
// waits for ever when one of them ends, as when the copy is cancelled or the target
// dies: that thread's word is heard, the others end without any.
const channels = 1

// firstPacked is the first QEMU of which a ceiling bounds what is sent:
// in those before, what is about to be compressed.
const firstPacked = 9

// packs reports whether a QEMU can send memory compressed: it is new enough and
// was built with zstd. A QEMU built without, or a file that is none, cannot.
func packs(binary, version string) bool {
	if majorVersion(version) < firstPacked {
		return false
	}
	f, err := elf.Open(binary)
	if err != nil {
		return false
	}
	defer f.Close()
	needs, _ := f.ImportedLibraries()
	return slices.ContainsFunc(needs, func(name string) bool { return strings.HasPrefix(name, "libzstd.") })
}

// majorVersion is the first number of a version; 0 if it has none.
func majorVersion(version string) int {
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	if err != nil {
		return 0
	}
	return n
}

// way is how memory goes.
type way struct {
	Packed   bool // compressed
	PostCopy bool // the rest after the guest runs at the target
	Preempt  bool // what it waits for then, on a line of its own
	Slow     bool // the guest is slowed if it changes memory as fast as that is sent
}

// slowing is how QEMU slows a guest (auto-converge): when at two looks at least nine
// tenths of what was sent have been changed again, its processors are stopped for half
// of the time, two looks later for nineteen twentieths. It looks after passes, and at
// most once a second.
var slowing = map[string]any{"throttle-trigger-threshold": 90, "cpu-throttle-initial": 50, "cpu-throttle-increment": 45, "max-cpu-throttle": 95}

// wayOf is how the memory of a guest goes that is copied within limits.
func wayOf(l fleet.Limits) way {
	return way{Packed: l.Compress == fleet.CompressOn, PostCopy: l.Mode == fleet.PostCopy, Preempt: l.Preempt, Slow: l.Slow}
}

// QEMU looks ten times a second whether a ceiling is reached (BUFFER_DELAY). What its
// threads have to compress goes out all the same: a packet each, which is half as large
// then, or a little more.
const (
	boundLooks  = 10
	packetBytes = 512 << 10
	leftOf      = 0.7
)

// Ceiling is what QEMU is to be told for no more than that many bytes a second to be
// sent.
func (w way) Ceiling(bytesPerSecond int64) int64 {
	if !w.Packed {
		return bytesPerSecond
	}
	beyond := int64(boundLooks * channels * packetBytes * leftOf)
	return bytesPerSecond - min(beyond, bytesPerSecond/2)
}

// boundBandwidth says how many bytes a second a copy under way may send.
func boundBandwidth(ctx context.Context, do streamDo, bytesPerSecond int64) error {
	return do(ctx, "migrate-set-parameters", map[string]any{"max-bandwidth": bytesPerSecond}, nil)
}

// prepareStream sets what source and target of a migration have to agree on. With a
// return path the source knows that the target has loaded everything; with the
// suspend before the switch nothing irrevocable happens unasked. Memory that is
// to be compressed goes over connections of its own; QEMU has no other way any
// more.
func prepareStream(ctx context.Context, do streamDo, w way) error {
	type capability struct {
		Name  string `json:"capability"`
		State bool   `json:"state"`
	}
	const on, off = true, false
	err := do(ctx, "migrate-set-capabilities", map[string]any{"capabilities": []capability{
		{"events", on}, {"return-path", on}, {"pause-before-switchover", on}, {"xbzrle", off}, {"multifd", w.Packed},
		{"postcopy-ram", w.PostCopy}, {"postcopy-preempt", w.Preempt}, {"auto-converge", w.Slow},
	}}, nil)
	if err == nil && w.Slow {
		err = do(ctx, "migrate-set-parameters", slowing, nil)
	}
	if err == nil && w.Packed {
		err = do(ctx, "migrate-set-parameters", map[string]any{"multifd-compression": "zstd", "multifd-channels": channels}, nil)
	}
	return err
}

// streamAddress checks what is about to become part of an address for QEMU.
func streamAddress(listen string) (string, error) {
	at, err := netip.ParseAddrPort(listen)
	if err != nil {
		return "", fmt.Errorf("the target's address: %w", err)
	}
	return "tcp:" + at.String(), nil
}
