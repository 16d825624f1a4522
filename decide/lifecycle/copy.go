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

// The limits of a copy that says nothing else. 50 ms is what a tightly coupled
// job sees as one slow step; 40 rounds are several times what a guest needs
// whose dirtying any link can follow, so more only burn the link.
const (
	DefaultDowntime = 50 * time.Millisecond
	DefaultRounds   = 40
)

// lenientDowntime is the longest downtime of a guest if the user set none,
// when passes no longer leave less: a pass over next to nothing takes a time, too,
// and that a host is not emptied is worse. It is not much above the 200 ms for which
// TCP waits where a frame is lost.
const lenientDowntime = 250 * time.Millisecond

// stuckRounds is the number of passes that left no less, after which none is expected that
// does.
const stuckRounds = 4

// stopDowntime is the longest downtime of a guest that is stopped to be copied:
// more than the largest takes. That nothing is sent any more is noticed sooner.
const stopDowntime = time.Hour

// Limits fills in what l leaves open.
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

// Round is what one pass over a guest's memory measured.
type Round struct {
	Took      time.Duration
	SentBytes int64
	LeftBytes int64 // dirty when the pass ended
}

// Rounds gives the passes between what was so when each of them began.
func Rounds(seen []fleet.Progress) (rounds []Round) {
	for i := 1; i < len(seen); i++ {
		before, after := seen[i-1], seen[i]
		// What is left is memory, so what was sent compressed counts as the memory it was.
		sent := max(after.SentBytes-before.SentBytes, after.CopiedBytes-before.CopiedBytes)
		rounds = append(rounds, Round{Took: after.Elapsed - before.Elapsed, SentBytes: sent, LeftBytes: after.RemainingBytes})
	}
	return rounds
}

// Copy judges a running copy after each round. The source's agent and the
// simulator ask it the same question.
func Copy(l fleet.Limits, rounds []Round) Verdict {
	switch {
	case l.Mode == fleet.StopAndCopy:
		return SwitchNow
	case len(rounds) == 0:
		return GoOn
	}
	l = Limits(l)
	if l.Mode == fleet.PostCopy {
		// What has been sent once need not be asked for one by one. What is
		// changed over and over is sent no sooner by another pass.
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

// stuck reports whether the last passes left hardly less than those before.
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

// downtimeOf is what the downtime would be if the guest switched after r.
func downtimeOf(r Round) time.Duration {
	return time.Duration(float64(r.Took) * float64(r.LeftBytes) / float64(r.SentBytes))
}
