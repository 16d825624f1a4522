package fleet

import "time"

// How long a connected host works on an order before it gives up and reports that.
// Callers wait for Patience.
const (
	// startLimit covers fetching an image over an office network and an emulated boot on
	// a busy host.
	startLimit = 30 * time.Minute
	// copyLimit only ends hung copies. Task.Limits ends copies that do not converge, and
	// post-copy finishes or fails by itself.
	copyLimit   = 12 * time.Hour
	switchLimit = 2 * time.Minute // longest suspension of the guest
	quickLimit  = time.Minute     // only talks to a local process, or flushes files
	// answerMargin covers undoing the order on the host, and a report over a bad network.
	answerMargin = 30 * time.Second
)

// Limit is how long a host may work on an order. 0: unlimited, or for End the job's
// grace.
func (v Verb) Limit(mode Mode) time.Duration {
	switch v {
	case Start, Receive:
		return startLimit
	case Copy, Fetch:
		return copyLimit
	case Switch:
		if mode == StopAndCopy {
			return copyLimit // all memory is sent then
		}
		return switchLimit
	case Stop, Activate, Retire, Revert, Discard:
		return quickLimit
	}
	return 0
}

// Patience is how long the controller waits for a connected host's answer before the
// order counts as unknown. It exceeds the host's own limit, so that the host does not
// still work on an order that counts as unknown. 0: unlimited.
func (v Verb) Patience(mode Mode) time.Duration {
	if limit := v.Limit(mode); limit > 0 {
		return limit + answerMargin
	}
	return 0
}

// Patience is how long the controller waits for a program that was told to end.
func (e Ending) Patience() time.Duration { return e.Grace + answerMargin }
