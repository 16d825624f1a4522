// This file configures how memory is sent from one QEMU to another: what source and
// target must agree on in advance.
//
// It must not know when compression pays. Its tests check the commands to QEMU; the
// driver's tests move real guests.

package qemu

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"pagurus/act/qemu/qmp"
	"pagurus/fleet"
)

// streamDo sends a command to QEMU.
type streamDo func(ctx context.Context, command string, args, out any) error

// yank makes QEMU drop its migration's connections, even while it answers nothing else;
// urge sends an out-of-band command.
func yank(ctx context.Context, urge func(ctx context.Context, command string, args any) error) error {
	return urge(ctx, "yank", map[string]any{"instances": []map[string]string{{"type": "migration"}}})
}

// channels is the number of connections for compressed memory, each with a compressing
// and a decompressing thread. With more than one, QEMU (10.0) hangs for ever when one
// ends, for example when the copy is cancelled or the target dies: only one thread's
// error is handled.
const channels = 1

// firstPacked is the first QEMU whose bandwidth limit counts compressed bytes. Earlier
// ones count uncompressed bytes.
const firstPacked = 9

// packs reports whether a QEMU can send memory compressed: it is new enough and
// was built with zstd. A file that is not an executable cannot.
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

// way is how memory is sent.
type way struct {
	Packed   bool // compressed
	PostCopy bool // the rest is sent after the guest runs at the target
	Preempt  bool // in post-copy, requested pages use a separate connection
	Slow     bool // the guest is slowed if it changes memory as fast as it is sent
}

// slowing is how QEMU slows a guest (auto-converge). If in two checks at least nine
// tenths of what was sent have changed again, its CPUs are stopped for half of the time,
// and two checks later for nineteen twentieths. It checks after passes, at most once a
// second.
var slowing = map[string]any{"throttle-trigger-threshold": 90, "cpu-throttle-initial": 50, "cpu-throttle-increment": 45, "max-cpu-throttle": 95}

// wayOf returns how memory is sent under these limits.
func wayOf(l fleet.Limits) way {
	return way{Packed: l.Compress == fleet.CompressOn, PostCopy: l.Mode == fleet.PostCopy, Preempt: l.Preempt, Slow: l.Slow}
}

// QEMU checks a bandwidth limit ten times a second (BUFFER_DELAY). Its compressing
// threads still send the packet that they have: half its size when compressed, or a
// little more.
const (
	boundLooks  = 10
	packetBytes = 512 << 10
	leftOf      = 0.7
)

// Ceiling returns the setting with which QEMU sends at most bytesPerSecond.
func (w way) Ceiling(bytesPerSecond int64) int64 {
	if !w.Packed {
		return bytesPerSecond
	}
	beyond := int64(boundLooks * channels * packetBytes * leftOf)
	return bytesPerSecond - min(beyond, bytesPerSecond/2)
}

// boundBandwidth sets a running copy's bandwidth limit.
func boundBandwidth(ctx context.Context, do streamDo, bytesPerSecond int64) error {
	return do(ctx, "migrate-set-parameters", map[string]any{"max-bandwidth": bytesPerSecond}, nil)
}

// backgroundSnapshot is the capability to write a guest as it is at one moment while it runs on.
const backgroundSnapshot = "background-snapshot"

// prepareStream sets what source and target must agree on. The return path tells the
// source that the target has loaded everything. The suspension before the switch makes
// sure that nothing irrevocable happens unasked. Compressed memory has connections of its
// own, the only way that QEMU still supports.
func prepareStream(ctx context.Context, do streamDo, w way) error {
	type capability struct {
		Name  string `json:"capability"`
		State bool   `json:"state"`
	}
	const on, off = true, false
	err := do(ctx, "migrate-set-capabilities", map[string]any{"capabilities": []capability{
		{backgroundSnapshot, off}, {"events", on}, {"return-path", on}, {"pause-before-switchover", on}, {"xbzrle", off}, {"multifd", w.Packed},
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

// leastDowntime keeps QEMU from suspending the guest by itself. It is not 0: QEMU 7.2
// then never checks again for dirty memory, and suspends the guest after the first pass
// with everything dirtied since still to be sent.
const leastDowntime = time.Millisecond

// prepareSource is prepareStream for a source, with its bandwidth in bytes a second. It reports whether QEMU
// copies on until the guest is stopped.
func prepareSource(ctx context.Context, do streamDo, w way, bandwidth int64) (waits bool, err error) {
	if err := prepareStream(ctx, do, w); err != nil {
		return false, err
	}
	if waits, err = awaitStop(ctx, do, true); err != nil {
		return false, err
	}
	return waits, do(ctx, "migrate-set-parameters", map[string]any{
		"max-bandwidth": bandwidth, "max-postcopy-bandwidth": bandwidth, "downtime-limit": leastDowntime.Milliseconds(),
	}, nil)
}

// awaitStop sets whether a source copies on until its guest is stopped, and reports whether it will. Otherwise QEMU
// suspends the guest itself once almost nothing is left, as when the host's processors were with others for a while.
// It waits for the target to agree (switchover-ack, since QEMU 8.1), which one without that capability never does; a guest that is
// stopped goes without. Earlier QEMUs refuse the name.
func awaitStop(ctx context.Context, do streamDo, on bool) (bool, error) {
	err := do(ctx, "migrate-set-capabilities", map[string]any{"capabilities": []map[string]any{{"capability": "switchover-ack", "state": on}}}, nil)
	if refused := (*qmp.Error)(nil); errors.As(err, &refused) {
		return false, nil
	}
	return on && err == nil, err
}

// streamAddress checks an address before QEMU gets it.
func (d *Driver) streamAddress(listen string) (string, error) {
	at, err := netip.ParseAddrPort(listen)
	if err != nil {
		return "", fmt.Errorf("the target's address: %w", err)
	}
	if at, err = d.Toward(at); err != nil {
		return "", err
	}
	return "tcp:" + at.String(), nil
}
