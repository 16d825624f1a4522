package presence

import (
	"time"

	"pagurus/fleet"
)

// Settings are thresholds and times. A threshold of 0 is never reached.
type Settings struct {
	InputWithin time.Duration // younger input is a sign

	BusyCPUs      float64       // more non-guest CPUs are a sign
	BusyShare     float64       // or, if set, more than this share of all CPUs while a person is at the machine,
	BusyShareAway float64       // or while none is
	IdleCPUs      float64       // and they stay a sign until they are at most this; 0: the same
	BusyFor       time.Duration // only after they have lasted this long

	WaitingMost float64 // non-guest load is a sign if some task waits for a CPU more than this share of the time
	MemoryLeast float64 // a smaller available share of memory is a sign; guests' memory counts as available
	StarvedMost float64 // non-guest load is a sign if all tasks wait for memory more than this share of the time
	Battery     bool    // running on battery is a sign

	Grace        time.Duration // after signs for this long the owner stays
	LeavingAfter time.Duration // after no sign for this long the owner is leaving, or only looked in
	IdleAfter    time.Duration // after no sign for this long the owner is absent
}

// never is a share that is never exceeded.
const never = 2

// presets are the settings by name; the empty name is our own.
//
// Our own yield at once, which costs guests little. They move guests only when the owner
// has stayed for a while, because moves cost more.
//
// condor is HTCondor's default policy for desktops. A key press within the last minute,
// or non-guest load of 0.5 for two minutes, suspends. 10 minutes of that evicts. 5
// minutes below 0.3 without keys resume. An evicted machine is used again after 15
// minutes without keys.
//
// boinc is BOINC's. Input within 3 minutes means that the machine is in use, which stops
// work at once instead of only suspending it. Non-guest load above 25 % of all CPUs while
// in use, or 50 % otherwise, also stops it, and so does battery power.
var presets = map[string]Settings{
	"": {
		InputWithin: 10 * time.Second, BusyCPUs: 0.3, IdleCPUs: 0.15, WaitingMost: 0.5, MemoryLeast: 0.05, StarvedMost: 0.1, Battery: true,
		Grace: 20 * time.Second, LeavingAfter: 10 * time.Second, IdleAfter: 15 * time.Minute,
	},
	"condor": {
		InputWithin: time.Minute, BusyCPUs: 0.5, IdleCPUs: 0.3, BusyFor: 2 * time.Minute, WaitingMost: never, StarvedMost: never,
		Grace: 10 * time.Minute, LeavingAfter: 5 * time.Minute, IdleAfter: 15 * time.Minute,
	},
	"boinc": {
		InputWithin: 3 * time.Minute, BusyShare: 0.25, BusyShareAway: 0.5, WaitingMost: never, StarvedMost: never, Battery: true,
		IdleAfter: 3 * time.Minute,
	},
}

// Of returns a policy's settings. An unknown preset is our own: the agent may be older
// than the controller.
func Of(p fleet.OwnerPolicy) Settings {
	s, ok := presets[p.Preset]
	if !ok {
		s = presets[""]
	}
	if p.IdleAfter > 0 {
		s.IdleAfter = p.IdleAfter
		s.LeavingAfter = min(s.LeavingAfter, p.IdleAfter)
		s.InputWithin = min(s.InputWithin, p.IdleAfter)
	}
	return s
}

// suspended is the share of CPUs for guests that should be suspended: enough to answer
// requests, so that they do not count as dead.
const suspended = 0.01

// Share is the share of a host's CPUs that guests may use together; nil: as without an
// owner; 0: only what the owner leaves.
func Share(s fleet.OwnerState, p fleet.OwnerPolicy) *float64 {
	if !s.There() {
		return nil
	}
	part := p.Cap
	if s == fleet.OwnerPresent && p.Vacate == fleet.Suspend {
		part = suspended
	}
	return &part
}
