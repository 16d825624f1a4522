package qemu

import "pagurus/fleet"

// firstWhole is the first QEMU that loses no pages of a guest with one part of memory.
const firstWhole = 9

// Loses reports whether a QEMU loses memory as it copies a guest of this shape, unless
// the size of each of its parts is odd. Only of emulated ones.
//
// Before 9.0 it clears the marks of changed pages 64 at a time without telling the
// emulated CPU, whose later writes to those pages then go unmarked (fixed by QEMU's
// commit 03bfc2188f). It does so only if the memory is a multiple of 64 pages. With one
// of some odd pages more it goes page by page and does it right, at the price of about
// 0.8 ms for each MiB of the guest's memory, once, when a copy begins. Seen with 7.2:
// without the odd pages one move in three or four breaks the guest, with them none in
// hundreds.
//
// wayOf several parts QEMU 10.0 loses pages of all but the first: it tells the emulated
// CPU as if they began at 0.
func Loses(emulated bool, version string, s *fleet.Shape) bool {
	return emulated && (majorVersion(version) < firstWhole || s != nil && len(s.Nodes) > 1)
}
