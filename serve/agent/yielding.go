// This file decides what a guest does next for the owner of its host: reclaim or return
// memory, suspend, resume, or a keepalive pulse.
//
// It is pure, and must not know how any of it is done. Its tests are those of package agent.

package agent

import (
	"time"

	"pagurus/fleet"
)

// The agent's own verbs for the owner of a host.
const (
	ReclaimMemory fleet.Verb = "reclaim-memory"
	ReturnMemory  fleet.Verb = "return-memory"
	SuspendGuest  fleet.Verb = "suspend"
	PulseGuest    fleet.Verb = "pulse"
	ResumeGuest   fleet.Verb = "resume"
)

const (
	// reclaimEvery is how often a guest's memory is reclaimed again, while the owner is
	// present: it may have more to give or need some back.
	reclaimEvery = 20 * time.Second
	// PulseEvery is the interval of a suspended guest's keepalive pulses. In a pulse its
	// kernel answers retransmissions. Without them its peers would give up the connection
	// after a quarter of an hour (TCP's fifteen tries).
	PulseEvery = time.Minute
	// PulseLength is how long a pulse lasts.
	PulseLength = 300 * time.Millisecond
)

// ReclaimState is what a guest gives up for the host's owner, as far as known.
type ReclaimState struct {
	Whole       bool      // the guest has all of its memory
	Reclaimed   int64     // reclaimed bytes
	ReclaimedAt time.Time // the time of the last reclaim
	Suspended   bool      // suspended for the owner
	Since       time.Time // the beginning of the suspension, or the end of the last pulse
}

// Next is the next verb for a guest, or empty. there: the owner is present. still: the guest
// should be suspended.
func (s ReclaimState) Next(run fleet.RunState, there, still bool, now time.Time) fleet.Verb {
	switch {
	case run == fleet.Suspended && s.Suspended && !still:
		return ResumeGuest
	case run == fleet.Suspended && s.Suspended && now.Sub(s.Since) >= PulseEvery:
		return PulseGuest
	case run != fleet.Running:
		return ""
	case there && s.Whole, there && now.Sub(s.ReclaimedAt) >= reclaimEvery:
		return ReclaimMemory // before the suspension: a suspended guest cannot give memory back
	case still:
		return SuspendGuest
	case !there && !s.Whole:
		return ReturnMemory
	}
	return ""
}
