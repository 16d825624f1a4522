package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"pagurus/fleet"
)

// ReadyLimit is how long the first ready member waits for its gang. The copies are
// started so that they end together. So a wait of minutes means that the others change
// memory as fast as it is sent. Meanwhile ready members are still copied, which takes
// bandwidth from the late ones.
const ReadyLimit = 5 * time.Minute

// gangRules are the rules for a whole gang, for the printed protocol. Gang, Start, Expire
// and CancelGang carry them out.
var gangRules = [][3]string{
	{"waiting", "no member is preparing, and no member that copies has much more left to send than this one", "copying"},
	{"ready", "the last member becomes ready", "all members enter switching in one change"},
	{"ready", "as above, but a mark of its program is awaited (for some seconds)", "all members enter switching in one change when it comes, or does not"},
	{"ready", "the deadline passes", "all that are ready enter switching in one change"},
	{"preparing or waiting", "the deadline passes, or another member or the whole move is cancelled", "discarding"},
	{"copying", "the deadline passes", "cancelling"},
	{"copying or ready", "another member or the whole move is cancelled", "cancelling"},
	{"preparing or waiting", "the guest's job is stopping", "discarding"},
	{"copying or ready", "the guest's job is stopping", "cancelling"},
	{"activating or post-copy", "the guest's job is stopping and the target has been asked 5 times", "lost"},
	{"activating or post-copy", "by post-copy: the source has lost the remaining memory and the target has been asked 5 times", "lost"},
	{"any other", "the guest's job is stopping", "goes on to its end, then the guest is stopped"},
}

const gangText = `
The deadline is what the move was given (--deadline), counted from its
beginning, or %s after the first member became ready, whichever comes first.
A guest that moves alone and is not ready by then stays, and the move is
cancelled; of a gang those that are not ready stay, and those that are go without
them. A move can be cancelled by anybody who may ask for it until its first
member has entered switching, and not after that.
`

// Gang applies a report on one member to its whole gang. The last member to become ready
// takes all members into switching, so that one commit changes every Home; if one of them
// awaits a mark, SwitchMarked does that. A member that cannot become ready cancels all. The second result is false if nothing changed.
func Gang(members []fleet.Migration, r fleet.Report) ([]fleet.Migration, bool, error) {
	for i, m := range members {
		if m.ID != r.Order.Migration {
			continue
		}
		next, changed, err := Migration(m, r)
		if err != nil || !changed {
			return members, false, err
		}
		out := slices.Clone(members)
		out[i] = next
		return applyGangRules(out, next, r.At), true, nil
	}
	return members, false, nil
}

// applyGangRules applies the gang's rules after its member next has changed.
func applyGangRules(members []fleet.Migration, next fleet.Migration, at time.Time) []fleet.Migration {
	switch next.Phase {
	case fleet.Ready:
		if allReady(members) && !slices.ContainsFunc(members, func(m fleet.Migration) bool { return m.AtMark }) {
			switchReady(members, at)
		}
	case fleet.Discarding:
		members, _ = CancelGang(members, at, fmt.Sprintf("%s of the same move could not leave: %s", next.Guest, next.Cause))
	}
	return members
}

// allReady reports whether a gang has nobody to wait for.
func allReady(members []fleet.Migration) bool {
	return len(members) > 0 && !slices.ContainsFunc(members, func(m fleet.Migration) bool { return m.Phase != fleet.Ready })
}

// AwaitsMark reports whether a gang is ready and waits only for a mark of its programs.
func AwaitsMark(members []fleet.Migration) bool {
	return allReady(members) && slices.ContainsFunc(members, func(m fleet.Migration) bool { return m.AtMark })
}

// SwitchMarked takes a gang that waits for a mark into switching, as Gang does with others. The caller knows that
// the mark came, or is not awaited any longer. The second result is false if the gang does not wait for one.
func SwitchMarked(members []fleet.Migration, at time.Time) ([]fleet.Migration, bool) {
	if !AwaitsMark(members) {
		return members, false
	}
	out := slices.Clone(members)
	switchReady(out, at)
	return out, true
}

// switchReady takes all ready members into switching.
func switchReady(members []fleet.Migration, at time.Time) {
	for i, m := range members {
		if m.Phase == fleet.Ready {
			// This invalidates all older orders. Home and Gen change in the same commit,
			// before any guest is suspended, so that no suspended guest waits for a
			// commit.
			members[i] = enter(m, fleet.Switching, at)
		}
	}
}

// startEarly is how much shorter than the longest running copy a new one may be. Progress
// of the longest is up to a second old.
const startEarly = 1.25

// Start begins copies of waiting members so that all copies end together. left returns
// the bytes a member still has to send in its first round. The longest begins first. Each
// other begins when the longest running copy has no more left than it has. They then end
// together, whether they share a link (each gets half) or not (each gets its own). So no
// member is ready early and copied repeatedly at the others' expense. No copy begins
// while another member's target is being prepared, which may be slow and may fail. The
// second result is false if no copy began.
func Start(members []fleet.Migration, left func(fleet.Migration) int64, at time.Time) ([]fleet.Migration, bool) {
	under, waiting, longest, next := false, false, int64(0), int64(0)
	for _, m := range members {
		switch m.Phase {
		case fleet.Preparing:
			return members, false
		case fleet.Copying:
			under, longest = true, max(longest, left(m))
		case fleet.Ready:
			under = true // with nothing left that matters
		case fleet.Waiting:
			waiting, next = true, max(next, left(m))
		}
	}
	if !waiting {
		return members, false
	}
	if !under {
		longest = next
	}
	out, began := slices.Clone(members), false
	for i, m := range out {
		if m.Phase == fleet.Waiting && startEarly*float64(left(m)) >= float64(longest) {
			out[i], began = enter(m, fleet.Copying, at), true
		}
	}
	return out, began
}

// Expire applies a move's deadlines: members that are not ready are cancelled, and the
// ready ones switch without them. The second result is false before the deadline, or if
// no member waits.
func Expire(v fleet.Move, members []fleet.Migration, at time.Time) ([]fleet.Migration, bool) {
	var first time.Time // when the first member became ready
	ready, late := 0, 0
	for _, m := range members {
		switch {
		case m.Phase == fleet.Ready:
			if ready++; first.IsZero() || m.Since.Before(first) {
				first = m.Since
			}
		case m.Phase.Traits().BeforeSwitch():
			late++
		}
	}
	var cause string
	switch limit := v.Limits.Deadline; {
	case limit > 0 && at.Sub(v.Begun) >= limit:
		cause = fmt.Sprintf("it was not ready within the deadline of %s", limit)
	case ready > 0 && at.Sub(first) >= ReadyLimit:
		cause = fmt.Sprintf("it was not ready %s after the first of its move was", ReadyLimit)
	}
	if cause == "" || ready+late == 0 {
		return members, false
	}
	if ready > 0 && late > 0 {
		cause += ", and the others went without it"
	}
	out := slices.Clone(members)
	switchReady(out, at) // first, so that cancelling the others does not affect these
	out, _ = CancelGang(out, at, cause)
	return out, true
}

// CancelGang cancels all members that have not begun to switch. The second result is
// false if nothing changed.
func CancelGang(members []fleet.Migration, at time.Time, cause string) ([]fleet.Migration, bool) {
	out, changed := slices.Clone(members), false
	for i, m := range out {
		to := m.Phase
		switch {
		case m.Phase == fleet.Preparing, m.Phase == fleet.Waiting:
			to = fleet.Discarding
		case m.Phase.Traits().BeforeSwitch():
			to = fleet.Cancelling
		}
		if to != m.Phase {
			out[i], changed = enter(m, to, at), true
			out[i].Cause = cause
		}
	}
	return out, changed
}

// Committed reports whether a migration has begun to switch and was not reverted. It can
// no longer be cancelled.
func Committed(m fleet.Migration) bool { return m.Phase.Traits().Committed }

// Abandon gives up a migration whose target was asked often enough to resume the guest,
// or whether it is complete. It is for guests whose job is over, and for guests that can
// never be complete: both hosts must destroy what they have. The second result is false
// before enough tries.
func Abandon(m fleet.Migration, at time.Time, cause string) (fleet.Migration, bool) {
	if t := m.Phase.Traits(); !t.AtTarget() || t.Arrived || m.Attempt < moreTries {
		return m, false
	}
	m = enter(m, fleet.Lost, at)
	m.Cause = cause
	return m, true
}

// Conclude ends a move whose members have all ended.
func Conclude(v fleet.Move, members []fleet.Migration, at time.Time) (fleet.Move, bool) {
	if !v.Ended.IsZero() {
		return v, false
	}
	for _, m := range members {
		if !m.Phase.Ended() {
			return v, false
		}
	}
	v.Ended = at
	return v, true
}
