package ranks

import (
	"math"
	"time"

	"pagurus/fleet"
)

// seen is what the library saw of the system up to the end of a gap. The times
// over and overRan are how far back that goes: at least as far as the gap, at
// most a second more and 20 ms more. All are in nanoseconds.
type seen struct {
	took     int64
	inside   bool
	over     int64 // of delay, stolen and the counts; 0: nobody looked
	delay    int64
	stolen   int64
	overRan  int64 // of ran and sleeps; 0: nobody looked
	ran      int64
	sleeps   uint32
	timeouts uint32
	probes   uint32
	resent   uint32
	delayed  uint32
}

const (
	// asleep is how long a rank that waits by itself sleeps at most: a waiting
	// rank is made to look again after 20 ms (PAGURUS_WAIT). One that slept
	// longer did not do so by itself.
	asleep = 50 * time.Millisecond
	// Shares of a gap from which on something is told as a cause.
	stolenShare = 10 // a tenth
	sharedShare = 4
	mostShare   = 2
	// heldBack is longer than one acknowledgement is held back: mostly for up to 40 ms,
	// and between a job's guests for 20. Any rank that waits for as long has held one
	// back, whatever it waits for, so of longer gaps it says nothing.
	heldBack = 60 * time.Millisecond
	// mostCounted is the largest difference that is one. A container's counters
	// of TCP begin again where it moves to, and what went back is a huge number.
	mostCounted = math.MaxInt32
)

// causes says what of it can have made the gap, the most telling first.
func (s seen) causes() []fleet.Cause {
	var out []fleet.Cause
	took := func(what fleet.Reason, ns int64, share int64) {
		if ns = min(ns, s.took); ns > 0 && ns >= s.took/share {
			out = append(out, fleet.Cause{What: what, Took: time.Duration(ns)})
		}
	}
	counted := func(what fleet.Reason, n uint32) {
		if n > 0 && n <= mostCounted && s.inside {
			out = append(out, fleet.Cause{What: what, Count: int(n)})
		}
	}
	if s.overRan > 0 {
		// Inside of a call a rank may sleep until something comes, but looks
		// again every so often.
		idle := s.overRan - max(s.ran, 0) - min(max(s.delay, 0), s.took)
		if !s.inside || int64(s.sleeps) < s.took/int64(asleep) {
			took(fleet.RankStopped, idle, mostShare)
		}
	}
	if s.over > 0 {
		counted(fleet.TCPTimeout, s.timeouts)
		// With one segment under way, as of small messages, Linux sends a loss probe
		// when the retransmission time-out has passed, and counts only that.
		counted(fleet.TCPProbe, s.probes)
		took(fleet.VCPUStolen, s.stolen, stolenShare)
		took(fleet.CPUShared, s.delay, sharedShare)
		counted(fleet.TCPResent, s.resent)
		if s.timeouts == 0 && s.probes == 0 && s.took < int64(heldBack) {
			counted(fleet.TCPDelayed, s.delayed)
		}
	}
	if s.overRan > 0 && !s.inside {
		took(fleet.Computing, s.ran, sharedShare)
	}
	return out
}
