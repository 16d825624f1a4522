package lifecycle

import (
	"fmt"
	"time"

	"pagurus/fleet"
)

// gangRules are the lines that concern a whole gang, for the printed protocol;
// Gang and CallOff carry them out.
var gangRules = [][3]string{
	{"ready", "the last member becomes ready", "all members enter switching in one change"},
	{"preparing", "another member is called off", "discarding"},
	{"copying or ready", "another member is called off", "withdrawing"},
	{"preparing", "the guest's job is stopping", "discarding"},
	{"copying or ready", "the guest's job is stopping", "withdrawing"},
	{"repointing", "the guest's job is stopping and the target has been asked 5 times", "stranded"},
	{"any other", "the guest's job is stopping", "goes on to its end, then the guest is stopped"},
}

// Gang moves a whole gang by one report on one of its members. Members that
// are ready wait for the others; the last one takes all of them into switching
// at once, so that one commit moves every Home. A member that cannot get that
// far takes all of them back. The second result is false when nothing changed.
func Gang(members []fleet.Migration, r fleet.Report) ([]fleet.Migration, bool, error) {
	for i, m := range members {
		if m.ID != r.Order.Migration {
			continue
		}
		next, changed, err := Migration(m, r)
		if err != nil || !changed {
			return members, false, err
		}
		out := append([]fleet.Migration(nil), members...)
		out[i] = next
		return gather(out, next, r.At), true, nil
	}
	return members, false, nil
}

// gather applies the gang's rules after its member next has changed.
func gather(members []fleet.Migration, next fleet.Migration, at time.Time) []fleet.Migration {
	switch next.Phase {
	case fleet.Ready:
		for _, m := range members {
			if m.Phase != fleet.Ready {
				return members
			}
		}
		for i, m := range members {
			// The point of no return for every order that is older: Home and
			// Gen follow in the same change, before anything is paused, so that
			// no commit is waited for while guests stand still.
			members[i] = enter(m, fleet.Switching, at)
		}
	case fleet.Discarding:
		members, _ = CallOff(members, at, fmt.Sprintf("%s of the same move could not leave: %s", next.Guest, next.Cause))
	}
	return members
}

// CallOff takes back every member of a gang that has not begun to switch. The
// second result is false when nothing changed.
func CallOff(members []fleet.Migration, at time.Time, cause string) ([]fleet.Migration, bool) {
	out, changed := append([]fleet.Migration(nil), members...), false
	for i, m := range out {
		to := m.Phase
		switch {
		case m.Phase == fleet.Preparing:
			to = fleet.Discarding
		case beforeSwitch(m.Phase):
			to = fleet.Withdrawing
		}
		if to != m.Phase {
			out[i], changed = enter(m, to, at), true
			out[i].Cause = cause
		}
	}
	return out, changed
}

// Abandon gives up a migration whose target has been asked to let the guest
// run as often as any other host is asked anything. It is for guests whose job
// is over: nobody needs to know any more who runs them, both hosts are told to
// destroy what they have. The second result is false when it is too early.
func Abandon(m fleet.Migration, at time.Time, cause string) (fleet.Migration, bool) {
	if m.Phase != fleet.Repointing || m.Attempt < moreTries {
		return m, false
	}
	m = enter(m, fleet.Stranded, at)
	m.Cause = cause
	return m, true
}

// Conclude sets the end of a move whose members have all ended.
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
