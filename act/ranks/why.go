package ranks

import (
	"math"
	"time"

	"pagurus/fleet"
)

// seen is the library's system data up to the end of a gap. over and overRan are how long
// before that it begins: at least the gap's length, at most a second and 20 ms more. All
// are in nanoseconds.
type seen struct {
	took     int64
	inside   bool
	over     int64 // of delay, stolen and the counts; 0: not measured
	delay    int64
	stolen   int64
	overRan  int64 // of ran and sleeps; 0: not measured
	ran      int64
	sleeps   uint32
	timeouts uint32
	probes   uint32
	resent   uint32
	delayed  uint32
}

const (
	// asleep is the longest sleep of a waiting rank: it wakes up after 20 ms
	// (PAGURUS_WAIT). A longer sleep was not its own.
	asleep = 50 * time.Millisecond
	// Minimum shares of a gap for a cause.
	stolenShare = 10 // a tenth
	sharedShare = 4
	mostShare   = 2
	// heldBack is longer than one delayed acknowledgement: usually up to 40 ms, and
	// between a job's guests 20. Any rank that waits this long has delayed one, so for
	// longer gaps it means nothing.
	heldBack = 60 * time.Millisecond
	// mostCounted is the largest valid difference. A container's TCP counters restart
	// when it moves, and a negative difference is a huge number.
	mostCounted = math.MaxInt32
)

// causes returns the possible causes of the gap, most relevant first.
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
		// Inside of a call a rank may sleep until data comes, but wakes up at intervals.
		idle := s.overRan - max(s.ran, 0) - min(max(s.delay, 0), s.took)
		if !s.inside || int64(s.sleeps) < s.took/int64(asleep) {
			took(fleet.RankStopped, idle, mostShare)
		}
	}
	if s.over > 0 {
		counted(fleet.TCPTimeout, s.timeouts)
		// With one segment in flight, as for small messages, Linux sends a loss probe
		// after the retransmission timeout, and counts only that.
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
