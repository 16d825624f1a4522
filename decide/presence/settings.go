package presence

import (
	"slices"
	"time"

	"pagurus/fleet"
)

// Settings are the thresholds and times. A threshold of 0 is never reached.
type Settings struct {
	InputWithin time.Duration // input that is younger is a sign

	BusyCPUs      float64       // others who use more CPUs are a sign
	BusyShare     float64       // or, where set, more than this part of all, while somebody is at the machine,
	BusyShareAway float64       // and while nobody is
	IdleCPUs      float64       // and are one until they use no more than this; 0: the same
	BusyFor       time.Duration // once they have done so for this long

	WaitingMost float64 // others who work at all are a sign when somebody waits for a CPU for more than this part of the time
	MemoryLeast float64 // others who leave less of the memory, what guests hold being left, are a sign
	StarvedMost float64 // and so are others who work while everybody waits for it for more than this part of the time
	Battery     bool    // so is running on a battery

	Grace        time.Duration // signs for so long, and the owner stays
	LeavingAfter time.Duration // no sign for so long, and they are going, or were never there for good
	IdleAfter    time.Duration // no sign for so long, and they are gone
}

// never is a part of the time that nothing exceeds.
const never = 2

// presets are the settings by name; the empty name is our own.
//
// Our own give way at once, which costs guests little, and send them off only
// when the owner has stayed for a while, which costs a move.
//
// condor is HTCondor's default policy of a desktop: a keyboard used within the
// minute, or a load by others of 0.5 for two minutes, suspends; 10 minutes of
// that evicts; 5 minutes below 0.3 and without keys let it go on; a machine that
// was vacated is used again after 15 minutes without keys.
//
// boinc is BOINC's: in use is who gave input within 3 minutes, and it is not
// only suspended but stopped at once; more than 25 % of all CPUs by others stop
// it while in use, 50 % while not; so do batteries.
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

// Presets names the presets there are, beside our own.
func Presets() []string {
	var out []string
	for name := range presets {
		if name != "" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// Of gives the settings of a policy. A preset that there is not is our own: an
// agent may be older than the controller.
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

// suspended is the part of a host's CPUs that guests keep which shall stand
// still: enough to answer when they are asked, so that nobody takes them for
// dead.
const suspended = 0.01

// Share is what part of a host's CPUs guests may use together; nil: no less than
// without an owner. 0 is no ceiling but what the owner leaves over.
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
