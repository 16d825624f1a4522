package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"pagurus/fleet"
)

// startTries is how often a guest's host tries to start it. A restart of the agent may
// have lost the first answer. A boot is slow, so further tries would only make the user
// wait.
const startTries = 2

var guestStages = []stage[fleet.GuestState]{
	{in: fleet.GuestStarting, verb: fleet.Start, at: "home"},
	{in: fleet.GuestRestoring, verb: fleet.Restore, at: "home"},
	{in: fleet.GuestRestored, says: "all guests of its job to be there"},
	{in: fleet.GuestResuming, verb: fleet.Activate, at: "home"},
	{in: fleet.GuestRunning, verb: fleet.Watch, at: "home"},
	{in: fleet.GuestMoving, says: "its migration: finished and aborted lead to running, lost to lost"},
	{in: fleet.GuestStopping, verb: fleet.Stop, at: "home"},
	{in: fleet.GuestSought, says: "the hosts to say which of them runs it, after the store was restored from a backup: that one becomes its home; if all have been heard and none does, it is lost"},
	{in: fleet.GuestEnded, says: "nothing; a host that still has it destroys it"},
	{in: fleet.GuestLost, says: "nothing; its job is stopped, a host that still has it destroys it"},
}

// guestArrows are the guest's transitions outside of migrations. Watch is outstanding
// while the guest runs: only its host can say that it ended, and is asked without limit.
var guestArrows = []arrow[fleet.GuestState]{
	{from: fleet.GuestStarting, on: fleet.Done, to: fleet.GuestRunning},
	{from: fleet.GuestStarting, on: fleet.Failed, to: fleet.GuestEnded},
	{from: fleet.GuestStarting, on: fleet.Unknown, to: fleet.GuestStarting, tries: startTries, last: fleet.GuestEnded},

	{from: fleet.GuestRestoring, on: fleet.Done, to: fleet.GuestRestored},
	{from: fleet.GuestRestoring, on: fleet.Failed, to: fleet.GuestEnded},
	{from: fleet.GuestRestoring, on: fleet.Unknown, to: fleet.GuestRestoring, tries: startTries, last: fleet.GuestEnded},

	{from: fleet.GuestResuming, on: fleet.Done, to: fleet.GuestRunning},
	{from: fleet.GuestResuming, on: fleet.Failed, to: fleet.GuestEnded},
	{from: fleet.GuestResuming, on: fleet.Unknown, to: fleet.GuestResuming, tries: moreTries, last: fleet.GuestEnded},

	{from: fleet.GuestRunning, on: fleet.Done, to: fleet.GuestEnded},
	{from: fleet.GuestRunning, on: fleet.Failed, to: fleet.GuestEnded},
	{from: fleet.GuestRunning, on: fleet.Unknown, to: fleet.GuestRunning},

	{from: fleet.GuestStopping, on: fleet.Done, to: fleet.GuestEnded},
	{from: fleet.GuestStopping, on: fleet.Failed, to: fleet.GuestStopping, tries: moreTries, last: fleet.GuestEnded},
	{from: fleet.GuestStopping, on: fleet.Unknown, to: fleet.GuestStopping, tries: moreTries, last: fleet.GuestEnded},
}

// Guest applies a report on one of the guest's own orders; Gang applies those of its
// migration. The second result is false if nothing changed.
func Guest(g fleet.Guest, r fleet.Report) (fleet.Guest, bool, error) {
	order, waits := GuestOrder(g)
	if !waits || r.Order != order {
		return g, false, nil
	}
	to, attempt, err := followOutcome(guestArrows, g.State, g.Attempt, r.Outcome)
	if err != nil {
		return g, false, fmt.Errorf("guest %s: %w", g.ID, err)
	}
	if to == fleet.GuestRunning && to == g.State { // it kept running
		g.Attempt = attempt
		return g, true, nil
	}
	if to == fleet.GuestEnded {
		g.Cause, g.HostFault = ending(g, r), hostFault(g, r)
	}
	if r.Remains != nil && g.Remains == nil { // a later one is of an attempt to stop what ended
		g.Remains = r.Remains
	}
	g.State, g.Attempt, g.Since = to, attempt, r.At
	return g, true, nil
}

// ending says why a guest ended, if that was not intended.
func ending(g fleet.Guest, r fleet.Report) string {
	switch g.State {
	case fleet.GuestStarting:
		return because(r, fmt.Sprintf("%s could not start it", g.Home))
	case fleet.GuestRestoring:
		return because(r, fmt.Sprintf("%s could not make it from %s", g.Home, g.From))
	case fleet.GuestResuming:
		return because(r, fmt.Sprintf("%s could not let it run", g.Home))
	case fleet.GuestRunning:
		if r.Outcome == fleet.Done {
			return because(r, "it ended by itself")
		}
		return because(r, fmt.Sprintf("%s no longer has it", g.Home))
	}
	if r.Outcome == fleet.Done {
		return g.Cause
	}
	return because(r, fmt.Sprintf("%s could not stop it", g.Home))
}

// GuestOrder returns the order of its own that a guest waits for, if any.
func GuestOrder(g fleet.Guest) (fleet.Order, bool) {
	verb := verbOf(guestStages, g.State)
	if verb == "" {
		return fleet.Order{}, false
	}
	o := fleet.Order{Verb: verb, Host: g.Home, Job: g.Job, Guest: g.ID, Born: g.Born, Gen: g.Gen, Attempt: g.Attempt}
	if verb == fleet.Restore {
		o.Checkpoint, o.Peer = g.From, g.Vault
	}
	return o, true
}

// ToldToStop reports whether an order is the one by which a guest is stopped or was, in any of its
// attempts: the answer to one may come after the guest counts as ended.
func ToldToStop(g fleet.Guest, o fleet.Order) bool {
	told := fleet.Order{Verb: fleet.Stop, Host: g.Home, Job: g.Job, Guest: g.ID, Born: g.Born, Gen: g.Gen, Attempt: o.Attempt}
	return o == told && (g.State == fleet.GuestStopping || g.State == fleet.GuestEnded)
}

// Depart starts the migration of a running guest as part of the named move. The mode is
// decided later.
func Depart(g fleet.Guest, to fleet.HostID, move fleet.MoveID, at time.Time) (fleet.Guest, fleet.Migration) {
	m := fleet.Migration{
		ID: fleet.MigrationID(fmt.Sprintf("%s.%s", move, g.ID)), Move: move, Guest: g.ID, Job: g.Job,
		From: g.Home, To: to, Born: g.Born, Gen: g.Gen,
	}
	g.State, g.Attempt, g.Since, g.Migration = fleet.GuestMoving, 0, at, m.ID
	return g, enter(m, fleet.Preparing, at)
}

// resumeRestored lets the guests of a job run when the last of them has been made from a checkpoint: what one sends
// meanwhile would wait for the others.
func resumeRestored(guests []fleet.Guest, at time.Time) (resumed []fleet.Guest) {
	for _, g := range guests {
		if g.State != fleet.GuestRestored {
			return nil
		}
		g.State, g.Attempt, g.Since = fleet.GuestResuming, 0, at
		resumed = append(resumed, g)
	}
	return resumed
}

// FollowMigration updates the guest from its migration's phase. Home is the host that may
// run the guest, so it changes before the guest switches. It changes back only on the
// promise that the guest did not switch.
func FollowMigration(g fleet.Guest, m fleet.Migration) fleet.Guest {
	if g.State != fleet.GuestMoving || g.Migration != m.ID {
		return g
	}
	g.Gen = m.Gen
	switch m.Phase {
	case fleet.Switching:
		g.Home = m.To
		g.Reason = fmt.Sprintf("came from %s with %s", m.From, m.Move)
	case fleet.Reverting:
		g.Home = m.From
		g.Reason = fmt.Sprintf("came back when %s could not be carried out", m.Move)
	case fleet.Finished:
		g.State, g.Since, g.Attempt, g.Migration = fleet.GuestRunning, m.Since, 0, ""
		g.Aborts, g.RetryAt = 0, time.Time{}
	case fleet.Aborted:
		g.State, g.Since, g.Attempt, g.Migration = fleet.GuestRunning, m.Since, 0, ""
		g.Aborts++
		g.RetryAt = m.Since.Add(pauseAfter(g.Aborts))
	case fleet.Lost:
		g.State, g.Since, g.Attempt, g.Migration = fleet.GuestLost, m.Since, 0, ""
		g.Cause, g.HostFault = m.Cause, true
		if slices.ContainsFunc(m.Entered, func(e fleet.Entered) bool { return e.Phase == fleet.Switching }) {
			g.Cause = fmt.Sprintf("%s left it between %s and %s: %s", m.Move, m.From, m.To, m.Cause)
		}
	}
	return g
}

// Stop starts stopping a guest that is at its home. A moving guest must finish its
// migration first. A sought one is lost: whichever host has it is no longer to have it.
func Stop(g fleet.Guest, at time.Time) (fleet.Guest, bool) {
	if g.State == fleet.GuestSought {
		return Lose(g, "its job was over before any host said that it runs the guest", at), true
	}
	switch g.State {
	case fleet.GuestStarting, fleet.GuestRestoring, fleet.GuestRestored, fleet.GuestResuming, fleet.GuestRunning:
	default:
		return g, false
	}
	g.State, g.Attempt, g.Since = fleet.GuestStopping, 0, at
	return g, true
}
