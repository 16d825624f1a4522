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

// Threads are those of a process.
type Threads interface {
	HasThread(names ...string) bool // that begins with one of these
	Locked() bool                   // the first waits for a lock
}

// Stuck reports whether a source that sends compressed and does not answer never
// will. In the last step of a copy one of the threads that send has met with an error,
// the others have ended without a word, and the one that waits for their word holds
// QEMU's lock, for which the first waits. The guest's state would only have come after
// that. Seen with QEMU 10.0.
func Stuck(t Threads) bool {
	waits := func() bool { return t.Locked() && t.HasThread("mig/src/main") && !t.HasThread("mig/src/send") }
	if !waits() {
		return false
	}
	time.Sleep(stuckFor)
	return waits()
}
