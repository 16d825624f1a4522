// This file says what a guest does next for the owner of its host: lend
// memory, stand still, breathe, and have all of it undone.
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
	Lend    fleet.Verb = "lend"
	Reclaim fleet.Verb = "reclaim"
	Pause   fleet.Verb = "pause"
	Breathe fleet.Verb = "breathe"
	Awaken  fleet.Verb = "awaken"
)

const (
	// lendEvery is how often it is seen whether a guest has more to give, or needs
	// some back, while the owner is there.
	lendEvery = 20 * time.Second
	// BreathEvery is how often a guest that stands still runs for a Breath: its
	// kernel answers what others have sent again and again meanwhile, who would else give
	// it up after a quarter of an hour (TCP's fifteen tries).
	BreathEvery = time.Minute
	// Breath is how long.
	Breath = 300 * time.Millisecond
)

// State is what a guest does for the host's owner, as far as is known.
type State struct {
	Whole  bool      // it has all of its memory
	Lent   int64     // bytes of it the host has
	LentAt time.Time // when that was looked at last
	Still  bool      // it was made to stand still
	Since  time.Time // when it last began to
}

// Next is what is to be done with a guest, whether the owner is there and it
// shall stand still; empty: nothing.
func (s State) Next(run fleet.RunState, there, still bool, now time.Time) fleet.Verb {
	switch {
	case run == fleet.Paused && s.Still && !still:
		return Awaken
	case run == fleet.Paused && s.Still && now.Sub(s.Since) >= BreathEvery:
		return Breathe
	case run != fleet.Running:
		return ""
	case there && s.Whole, there && now.Sub(s.LentAt) >= lendEvery:
		return Lend // before it stands still: then it can give nothing
	case still:
		return Pause
	case !there && !s.Whole:
		return Reclaim
	}
	return ""
}
