package stream

import (
	"errors"
	"time"
)

// ErrStuck is of a guest that is nowhere any more.
var ErrStuck = errors.New("the target ended in the last step of a compressed copy: it has not got the guest, and QEMU here waits for it for ever")

// stuckFor is how long QEMU may be making, or clearing away, the threads that
// compress.
const stuckFor = time.Second

// Stuck reports whether a source that sends compressed and does not answer never
// will, going by the names that its threads begin with. In the last step of a copy
// one of those that send has met with an error, the others have ended without a word,
// and the one that waits for their word holds QEMU's lock. The guest's state would
// only have come after that. Seen with QEMU 10.0.
func Stuck(has func(threads ...string) bool) bool {
	waits := func() bool { return has("mig/src/main") && !has("mig/src/send") }
	if !waits() {
		return false
	}
	time.Sleep(stuckFor)
	return waits()
}
