package lifecycle

import (
	"fmt"
	"time"

	"pagurus/fleet"
)

// Seek is the first step after the store was restored from a backup: a guest that had not ended
// may be anywhere since, with another generation, or have ended. Nothing is ordered for it until
// the hosts have said where it is.
func Seek(g fleet.Guest, at time.Time) fleet.Guest {
	if g.State.Ended() {
		return g
	}
	g.State, g.Attempt, g.Since, g.Migration, g.Suspended = fleet.GuestSought, 0, at, "", false
	return g
}

// Adopt makes the host that runs a sought guest its home. The generation rises above all that
// hosts have seen of it, so that no older order counts any more.
func Adopt(g fleet.Guest, home fleet.HostID, seen uint64, at time.Time) fleet.Guest {
	if home != g.Home {
		g.Reason = fmt.Sprintf("%s, and only %s, said that it ran it when the cluster's state was restored, which had it on %s", home, home, g.Home)
	}
	g.State, g.Attempt, g.Since = fleet.GuestRunning, 0, at
	g.Home, g.Gen = home, max(g.Gen, seen)+1
	g.Aborts, g.RetryAt = 0, time.Time{}
	return g
}

// Lose ends the search for a guest. A host that still has it destroys it.
func Lose(g fleet.Guest, cause string, at time.Time) fleet.Guest {
	if g.State != fleet.GuestSought {
		return g
	}
	g.State, g.Attempt, g.Since, g.Cause = fleet.GuestLost, 0, at, cause
	return g
}

// Interrupt ends a migration that only a backup knows: how it went is not known.
func Interrupt(m fleet.Migration, at time.Time, cause string) fleet.Migration {
	if m.Phase.Ended() {
		return m
	}
	m = enter(m, fleet.Aborted, at)
	m.Cause = cause
	return m
}

// Unrecorded makes the records of a guest that a host has and of its job, both younger than the
// backup from which the store was restored: they are over, since nothing else is known of them.
func Unrecorded(g fleet.Guest, home fleet.HostID, cause string, at time.Time) (fleet.Job, fleet.Guest) {
	g.State, g.Home, g.Since, g.Cause = fleet.GuestLost, home, at, cause
	j := fleet.Job{
		ID: g.Job, State: fleet.JobEnded, Since: at, Submitted: at, Ended: at, Result: fleet.JobFailed, Cause: cause,
		Spec: fleet.JobSpec{Args: []string{"(unknown)"}, Kind: g.Kind, Ranks: 1, Guests: g.Index + 1},
	}
	return j, g
}
