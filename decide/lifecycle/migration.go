package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"pagurus/fleet"
)

// moreTries allows for a restarted agent or a reconnected cable: five tries, about ten
// seconds apart if the host is silent. After them a person must act.
const moreTries = 5

// switchTries covers the minutes that a host or network switch takes to reboot: five,
// before the guest counts as lost. Once a switch has begun, only the source can tell
// whether it still has the guest.
const switchTries = 30

// migrationStages says which order each phase waits for.
var migrationStages = func() (all []stage[fleet.Phase]) {
	for _, t := range fleet.Phases {
		all = append(all, stage[fleet.Phase]{in: t.Phase, verb: t.Verb, at: string(t.Side), says: t.Label})
	}
	return all
}()

// migrationArrows is the whole protocol of one migration. Failed promises that nothing
// happened, so the migration can be undone. Unknown does not, so after the switch the
// order can only be repeated.
var migrationArrows = []arrow[fleet.Phase]{
	{from: fleet.Preparing, on: fleet.Done, to: fleet.Waiting},
	{from: fleet.Preparing, on: fleet.Failed, to: fleet.Discarding},
	{from: fleet.Preparing, on: fleet.Unknown, to: fleet.Discarding},

	{from: fleet.Copying, on: fleet.Done, to: fleet.Ready},
	{from: fleet.Copying, on: fleet.Failed, to: fleet.Discarding},
	// QEMU may have ended the copy by itself and hold the guest there.
	{from: fleet.Copying, on: fleet.Unknown, to: fleet.Cancelling},

	{from: fleet.Switching, on: fleet.Done, to: fleet.Activating},
	{from: fleet.Switching, on: fleet.Failed, to: fleet.Reverting},
	{from: fleet.Switching, on: fleet.Unknown, to: fleet.Switching, tries: switchTries, last: fleet.Lost},
	// No other host can run the guest then, so the target is asked whether it has it.
	{from: fleet.Switching, on: fleet.Gone, to: fleet.Activating},

	// From here on the source must never run again: the target has the whole guest and
	// may run it. A silent target is asked without limit. One that repeatedly cannot
	// resume the guest has lost it.
	{from: fleet.Activating, on: fleet.Done, to: fleet.Retiring},
	{from: fleet.Activating, on: fleet.Failed, to: fleet.Activating, tries: moreTries, last: fleet.Lost},
	{from: fleet.Activating, on: fleet.Unknown, to: fleet.Activating},

	// The guest runs at the target. The source has the missing memory and must not be
	// touched until all has arrived, which only the target knows. If the target says that
	// some never will, the guest is lost.
	{from: fleet.PostCopying, on: fleet.Done, to: fleet.Retiring},
	{from: fleet.PostCopying, on: fleet.Failed, to: fleet.Lost},
	{from: fleet.PostCopying, on: fleet.Unknown, to: fleet.PostCopying},

	{from: fleet.Retiring, on: fleet.Done, to: fleet.Finished},
	{from: fleet.Retiring, on: fleet.Failed, to: fleet.Retiring},
	{from: fleet.Retiring, on: fleet.Unknown, to: fleet.Retiring, tries: moreTries, last: fleet.Finished},

	// Before the switch the guest is at the source, whatever the source answers.
	{from: fleet.Cancelling, on: fleet.Done, to: fleet.Discarding},
	{from: fleet.Cancelling, on: fleet.Failed, to: fleet.Discarding},
	{from: fleet.Cancelling, on: fleet.Unknown, to: fleet.Cancelling, tries: moreTries, last: fleet.Discarding},

	{from: fleet.Reverting, on: fleet.Done, to: fleet.Discarding},
	{from: fleet.Reverting, on: fleet.Failed, to: fleet.Lost},
	{from: fleet.Reverting, on: fleet.Unknown, to: fleet.Reverting, tries: switchTries, last: fleet.Lost},

	{from: fleet.Discarding, on: fleet.Done, to: fleet.Aborted},
	{from: fleet.Discarding, on: fleet.Failed, to: fleet.Discarding},
	{from: fleet.Discarding, on: fleet.Unknown, to: fleet.Discarding, tries: moreTries, last: fleet.Aborted},
}

// postCopyArrows replace those above in post-copy.
var postCopyArrows = []arrow[fleet.Phase]{
	{from: fleet.Activating, on: fleet.Done, to: fleet.PostCopying},
}

// arrowsOf returns the arrows of a mode, overriding ones first.
func arrowsOf(mode fleet.Mode) []arrow[fleet.Phase] {
	if mode == fleet.PostCopy {
		return slices.Concat(postCopyArrows, migrationArrows)
	}
	return migrationArrows
}

// Migration applies a report to one migration, ignoring its gang. A report on any other
// than the outstanding order is stale and changes nothing: the second result is false.
func Migration(m fleet.Migration, r fleet.Report) (fleet.Migration, bool, error) {
	order, waits := MigrationOrder(m)
	if !waits || r.Order != order {
		return m, false, nil
	}
	to, attempt, err := followOutcome(arrowsOf(m.Mode), m.Phase, m.Attempt, r.Outcome)
	if err != nil {
		return m, false, fmt.Errorf("migration %s: %w", m.ID, err)
	}
	m.Attempt, m.Since = attempt, r.At
	if r.Outcome != fleet.Done && !m.Orphan { // the cause from the source is more useful
		m.Cause = because(r, fmt.Sprintf("%s could not %s it", r.Order.Host, r.Order.Verb))
	}
	m.Orphan = m.Orphan || r.Outcome == fleet.Gone
	if r.Listen != "" {
		m.Listen = r.Listen
	}
	if r.Cost != nil {
		m.Cost = *r.Cost
	}
	if r.Rounds != nil {
		m.Rounds = r.Rounds
	}
	if !r.Resumed.IsZero() {
		m.Resumed = r.Resumed
	}
	if to != m.Phase {
		m = enter(m, to, r.At)
	}
	return m, true, nil
}

// enter is the only function that changes a migration's phase. It raises the generation
// when it changes the guest's home, so that a host that knows the new one refuses older
// orders.
func enter(m fleet.Migration, p fleet.Phase, at time.Time) fleet.Migration {
	m.Phase, m.Attempt, m.Since = p, 0, at
	m.Entered = append(slices.Clip(m.Entered), fleet.Entered{Phase: p, At: at}) // snapshots share the old slice
	switch p {
	case fleet.Switching, fleet.Reverting:
		m.Gen++
	case fleet.Finished:
		m.Cause = "" // earlier problems were overcome
	}
	return m
}

// MigrationOrder returns the order a migration waits for, if any.
func MigrationOrder(m fleet.Migration) (fleet.Order, bool) {
	phase := m.Phase.Traits()
	if phase.Verb == "" {
		return fleet.Order{}, false
	}
	o := fleet.Order{
		Verb: phase.Verb, Host: m.From, Peer: m.To, Job: m.Job, Guest: m.Guest,
		Migration: m.ID, Born: m.Born, Gen: m.Gen, Attempt: m.Attempt,
	}
	if phase.Side == fleet.Target {
		o.Host, o.Peer = m.To, m.From
	}
	return o, true
}

// Carrier returns the host that gets a guest's frames; m is its migration, if any. Frames
// follow the guest, not its Home: they go to the source until the target is told to
// resume it. Frames that reach the source while the guest is suspended are forwarded to
// Next.
func Carrier(g fleet.Guest, m fleet.Migration) fleet.HostID {
	switch {
	case m.ID == "" || m.Phase.Ended():
		return g.Home
	case m.Phase.Traits().AtTarget():
		return m.To
	}
	return m.From
}

// Next returns the host to which a guest may be about to switch; m is its migration, if
// any. Empty: none.
func Next(g fleet.Guest, m fleet.Migration) fleet.HostID {
	if m.ID == "" || m.Phase.Ended() || Carrier(g, m) == m.To {
		return ""
	}
	return m.To
}

// Places returns the hosts where a guest may exist in any state; m is its migration, if
// any.
func Places(g fleet.Guest, m fleet.Migration) []fleet.HostID {
	switch {
	case g.State.Ended():
		return nil
	case m.ID == "" || m.Phase.Ended():
		return []fleet.HostID{g.Home}
	}
	return []fleet.HostID{m.From, m.To}
}

// Settled reports whether a guest is certainly at its Home, so that its program can be
// queried there.
func Settled(m fleet.Migration) bool {
	switch m.Phase {
	case fleet.Switching, fleet.Activating, fleet.Reverting:
		return false
	}
	return true
}
