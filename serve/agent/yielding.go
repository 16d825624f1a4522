// This file says what a guest does next for the owner of its host: lend
// memory, are suspended, breathe, and have all of it undone.
//
// It is pure, and must not know how any of it is done. Its tests are those of
// package agent.

package agent

import (
	"time"

	"pagurus/fleet"
)

// What a guest may have to do, as an agent's own verbs.
const (
	ReclaimMemory fleet.Verb = "reclaim-memory"
	ReturnMemory  fleet.Verb = "return-memory"
	SuspendGuest  fleet.Verb = "suspend"
	PulseGuest    fleet.Verb = "pulse"
	ResumeGuest   fleet.Verb = "resume"
)

const (
	// reclaimEvery is how often it is seen whether a guest has more to give, or needs
	// some back, while the owner is there.
	reclaimEvery = 20 * time.Second
	// PulseEvery is how often a guest that is suspended runs for a Breath: its
	// kernel answers what others have sent again and again meanwhile, who would else give
	// it up after a quarter of an hour (TCP's fifteen tries).
	PulseEvery = time.Minute
	// PulseLength is how long.
	PulseLength = 300 * time.Millisecond
)

// ReclaimState is what a guest does for the host's owner, as far as is known.
type ReclaimState struct {
	Whole       bool      // it has all of its memory
	Reclaimed   int64     // bytes of it the host has
	ReclaimedAt time.Time // when that was looked at last
	Suspended   bool      // it was made to wait
	Since       time.Time // when it last began to
}

// Next is what is to be done with a guest, whether the owner is there and it
// is to be suspended; empty: nothing.
func (s ReclaimState) Next(run fleet.RunState, there, still bool, now time.Time) fleet.Verb {
	switch {
	case run == fleet.Suspended && s.Suspended && !still:
		return ResumeGuest
	case run == fleet.Suspended && s.Suspended && now.Sub(s.Since) >= PulseEvery:
		return PulseGuest
	case run != fleet.Running:
		return ""
	case there && s.Whole, there && now.Sub(s.ReclaimedAt) >= reclaimEvery:
		return ReclaimMemory // before it is suspended: then it can give nothing
	case still:
		return SuspendGuest
	case !there && !s.Whole:
		return ReturnMemory
	}
	return ""
}
