package qemu

import "pagurus/fleet"

// firstWhole is the first QEMU that loses no pages of a guest with one memory region.
const firstWhole = 9

// Loses reports whether a QEMU loses memory when it copies a guest of this shape, unless
// the size of each memory region is odd. It affects only emulated guests.
//
// Before 9.0 it clears the dirty bits of 64 pages at a time without telling the emulated
// CPU, whose later writes to those pages then go unmarked (fixed by QEMU's commit
// 03bfc2188f). It does so only if the memory is a multiple of 64 pages. With some
// additional pages it clears them one by one, correctly, at about 0.8 ms for each MiB of
// guest memory, once per copy. Seen with 7.2: with even sizes one move in three or four
// breaks the guest, with odd sizes none in hundreds.
//
// With several regions, QEMU 10.0 loses pages of all but the first: it informs the
// emulated CPU as if each began at 0.
func Loses(emulated bool, version string, s *fleet.Shape) bool {
	return emulated && (majorVersion(version) < firstWhole || s != nil && len(s.Nodes) > 1)
}
