package fleet

import "time"

// How long a host works on an order before it gives it up and says so, if it is
// heard from. Those who wait for the answer wait for Patience.
const (
	// startLimit covers fetching an image over an office line and booting
	// under emulation on a busy host.
	startLimit = 30 * time.Minute
	// copyLimit only ends what hangs: Task.Limits ends what does not converge, and
	// what follows after post-copy comes to its end or breaks.
	copyLimit   = 12 * time.Hour
	switchLimit = 2 * time.Minute // the longest that the guest is suspended
	quickLimit  = time.Minute     // what only talks to a process on the host, or flushes files
	// answerMargin is what an answer may take after the limit: what the host has
	// begun is undone, and the report goes over a bad line.
	answerMargin = 30 * time.Second
)

// Limit is how long a host may take over an order; 0: as long as it takes, or for
// End, which has its own, as long as the job's grace.
func (v Verb) Limit(mode Mode) time.Duration {
	switch v {
	case Start, Receive:
		return startLimit
	case Copy, Fetch:
		return copyLimit
	case Switch:
		if mode == StopAndCopy {
			return copyLimit // all there is goes over then
		}
		return switchLimit
	case Stop, Activate, Retire, Revert, Discard:
		return quickLimit
	}
	return 0
}

// Patience is how long the controller waits for the answer of a host that is heard
// from, before the order counts as unknown: longer than the host's own limit, or
// the host would still work on what is taken for lost. 0: for ever.
func (v Verb) Patience(mode Mode) time.Duration {
	if limit := v.Limit(mode); limit > 0 {
		return limit + answerMargin
	}
	return 0
}

// Patience is how long a program that was told to end may take in all, until its
// host has said so.
func (e Ending) Patience() time.Duration { return e.Grace + answerMargin }
