package lifecycle

import (
	"cmp"
	"slices"
	"time"

	"pagurus/fleet"
)

// Verdict is what a source does after one round of copying.
type Verdict string

// The verdicts.
const (
	GoOn      Verdict = "go on"
	SwitchNow Verdict = "switch now"
	GiveUp    Verdict = "give up"
)

// The default limits of a copy. A tightly coupled job sees 50 ms as one slow step. 40
// rounds are several times what a guest needs if the link can keep up with its dirtying.
// More rounds only waste the link.
const (
	DefaultDowntime = 50 * time.Millisecond
	DefaultRounds   = 40
)

// lenientDowntime is the maximum downtime if the user set none and rounds no longer help.
// A round takes a minimum time however little is sent, and failing to empty the host is
// worse. It is slightly above the 200 ms that TCP waits when a frame is lost.
const lenientDowntime = 250 * time.Millisecond

// stuckRounds is the number of rounds without progress after which none is expected.
const stuckRounds = 4

// stopDowntime is the maximum downtime of stop-and-copy: more than the largest guest
// takes. A stalled transfer is detected sooner.
const stopDowntime = time.Hour

// Limits fills in the defaults of l.
func Limits(l fleet.Limits) fleet.Limits {
	if l.Mode == fleet.StopAndCopy {
		l.Downtime = stopDowntime
	}
	if l.Downtime <= 0 {
		l.Downtime = DefaultDowntime
	}
	if l.Rounds <= 0 {
		l.Rounds = DefaultRounds
	}
	return l
}

// Round is the measurement of one round.
type Round struct {
	Took      time.Duration
	SentBytes int64
	LeftBytes int64 // dirty when the round ended
}

// Rounds returns the rounds between successive samples, each taken when a round began.
func Rounds(seen []fleet.Progress) (rounds []Round) {
	for i := 1; i < len(seen); i++ {
		before, after := seen[i-1], seen[i]
		// LeftBytes is uncompressed, so compressed data counts at its original size.
		sent := max(after.SentBytes-before.SentBytes, after.CopiedBytes-before.CopiedBytes)
		rounds = append(rounds, Round{Took: after.Elapsed - before.Elapsed, SentBytes: sent, LeftBytes: after.RemainingBytes})
	}
	return rounds
}

// Copy judges a running copy after each round, for the source's agent and for the
// simulator.
func Copy(l fleet.Limits, rounds []Round) Verdict {
	switch {
	case l.Mode == fleet.StopAndCopy:
		return SwitchNow
	case len(rounds) == 0:
		return GoOn
	}
	l = Limits(l)
	if l.Mode == fleet.PostCopy {
		// Pages sent once need no single requests later. Another round does not help with
		// pages that change repeatedly.
		return SwitchNow
	}
	last := rounds[len(rounds)-1]
	switch {
	case last.LeftBytes == 0:
		return SwitchNow
	case last.SentBytes > 0 && downtimeOf(last) <= l.Downtime:
		return SwitchNow
	case l.Lenient && last.SentBytes > 0 && downtimeOf(last) <= lenientDowntime && stuck(rounds):
		return SwitchNow
	case len(rounds) >= l.Rounds:
		return GiveUp
	}
	return GoOn
}

// stuck reports whether the last rounds left hardly less than those before.
func stuck(rounds []Round) bool {
	if len(rounds) <= stuckRounds {
		return false
	}
	least := func(rounds []Round) int64 {
		return slices.MinFunc(rounds, func(a, b Round) int { return cmp.Compare(a.LeftBytes, b.LeftBytes) }).LeftBytes
	}
	begun := len(rounds) - stuckRounds
	return least(rounds[begun:]) > least(rounds[:begun])/10*9
}

// downtimeOf predicts the downtime of a switch after r.
func downtimeOf(r Round) time.Duration {
	return time.Duration(float64(r.Took) * float64(r.LeftBytes) / float64(r.SentBytes))
}
