package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"pagurus/fleet"
)

// Five further tries, about ten seconds apart when the host is silent, let an
// agent be restarted or a cable be put back; after them somebody must look.
const moreTries = 5

// Once a switch has begun only the source's own word tells whether the guest
// is still there. A host that reboots, or a network switch that does, takes
// minutes: five of them, before the guest counts as lost.
const switchTries = 30

// migrationStages says which order each phase waits for.
var migrationStages = func() (all []stage[fleet.Phase]) {
	for _, t := range fleet.Phases {
		all = append(all, stage[fleet.Phase]{in: t.Phase, verb: t.Verb, at: string(t.Side), says: t.Label})
	}
	return all
}()

// migrationArrows is the whole protocol of one migration. Failed is a promise
// that nothing happened, so it may always be undone; unknown is not, so past
// switching it may only be asked again.
var migrationArrows = []arrow[fleet.Phase]{
	{from: fleet.Preparing, on: fleet.Done, to: fleet.Waiting},
	{from: fleet.Preparing, on: fleet.Failed, to: fleet.Discarding},
	{from: fleet.Preparing, on: fleet.Unknown, to: fleet.Discarding},

	{from: fleet.Copying, on: fleet.Done, to: fleet.Ready},
	{from: fleet.Copying, on: fleet.Failed, to: fleet.Discarding},
	// QEMU may have come to the gate by itself and hold the guest there.
	{from: fleet.Copying, on: fleet.Unknown, to: fleet.Cancelling},

	{from: fleet.Switching, on: fleet.Done, to: fleet.Activating},
	{from: fleet.Switching, on: fleet.Failed, to: fleet.Reverting},
	{from: fleet.Switching, on: fleet.Unknown, to: fleet.Switching, tries: switchTries, last: fleet.Lost},
	// Nobody else can run then, so the target may be asked whether it has it.
	{from: fleet.Switching, on: fleet.Gone, to: fleet.Activating},

	// From here on the source must never run again: the target has the guest
	// whole and may be running it. There is no way back, so a target that is
	// silent is asked without limit; one that says again and again that it
	// cannot has lost the guest.
	{from: fleet.Activating, on: fleet.Done, to: fleet.Retiring},
	{from: fleet.Activating, on: fleet.Failed, to: fleet.Activating, tries: moreTries, last: fleet.Lost},
	{from: fleet.Activating, on: fleet.Unknown, to: fleet.Activating},

	// The guest runs at the target, the source has what is missing of it and may
	// not be touched before all has come. Only the target knows when that is.
	// One that says that it never will has lost the guest: there is no other.
	{from: fleet.PostCopying, on: fleet.Done, to: fleet.Retiring},
	{from: fleet.PostCopying, on: fleet.Failed, to: fleet.Lost},
	{from: fleet.PostCopying, on: fleet.Unknown, to: fleet.PostCopying},

	{from: fleet.Retiring, on: fleet.Done, to: fleet.Finished},
	{from: fleet.Retiring, on: fleet.Failed, to: fleet.Retiring},
	{from: fleet.Retiring, on: fleet.Unknown, to: fleet.Retiring, tries: moreTries, last: fleet.Finished},

	// Before the switch the guest is at the source whatever the source answers.
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

// postCopyArrows take the place of those above in a migration by post-copy.
var postCopyArrows = []arrow[fleet.Phase]{
	{from: fleet.Activating, on: fleet.Done, to: fleet.PostCopying},
}

// arrowsOf gives the arrows of a mode, those that count first.
func arrowsOf(mode fleet.Mode) []arrow[fleet.Phase] {
	if mode == fleet.PostCopy {
		return slices.Concat(postCopyArrows, migrationArrows)
	}
	return migrationArrows
}

// Migration moves one migration by one report, without regard to its gang. A
// report about anything but the order it waits for is stale and changes
// nothing: the second result is false.
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
	if r.Outcome != fleet.Done && !m.Orphan { // what became of it at the source says more
		m.Cause = because(r, fmt.Sprintf("%s could not %s it", r.Order.Host, r.Order.Verb))
	}
	m.Orphan = m.Orphan || r.Outcome == fleet.Gone
	if r.Listen != "" {
		m.Listen = r.Listen
	}
	if r.Cost != nil {
		m.Cost = *r.Cost
	}
	if r.Passes != nil {
		m.Passes = r.Passes
	}
	if !r.Resumed.IsZero() {
		m.Resumed = r.Resumed
	}
	if to != m.Phase {
		m = enter(m, to, r.At)
	}
	return m, true, nil
}

// enter is the only place where a migration's phase changes. The generation
// rises in the very change that moves the guest's home, so that a host which
// has seen the newer one refuses every order from before.
func enter(m fleet.Migration, p fleet.Phase, at time.Time) fleet.Migration {
	m.Phase, m.Attempt, m.Since = p, 0, at
	m.Entered = append(slices.Clip(m.Entered), fleet.Entered{Phase: p, At: at}) // others read the old one
	switch p {
	case fleet.Switching, fleet.Reverting:
		m.Gen++
	case fleet.Finished:
		m.Cause = "" // what went wrong on the way was overcome
	}
	return m
}

// MigrationOrder gives the order a migration waits for, if it waits for one.
func MigrationOrder(m fleet.Migration) (fleet.Order, bool) {
	phase := m.Phase.Traits()
	if phase.Verb == "" {
		return fleet.Order{}, false
	}
	o := fleet.Order{
		Verb: phase.Verb, Host: m.From, Peer: m.To, Job: m.Job, Guest: m.Guest,
		Migration: m.ID, Gen: m.Gen, Attempt: m.Attempt,
	}
	if phase.Side == fleet.Target {
		o.Host, o.Peer = m.To, m.From
	}
	return o, true
}

// Carrier gives the host to which frames for a guest should be sent, m being
// the migration that has it, if any. Frames follow the guest, not its Home:
// they go to the source until the target is told to let it run. What comes to
// the source while the guest is suspended is forwarded to Next.
func Carrier(g fleet.Guest, m fleet.Migration) fleet.HostID {
	switch {
	case m.ID == "" || m.Phase.Ended():
		return g.Home
	case m.Phase.Traits().AtTarget():
		return m.To
	}
	return m.From
}

// Next gives the host to which a guest may be about to switch, m being the
// migration that has it, if any; empty: none.
func Next(g fleet.Guest, m fleet.Migration) fleet.HostID {
	if m.ID == "" || m.Phase.Ended() || Carrier(g, m) == m.To {
		return ""
	}
	return m.To
}

// Places gives the hosts on which a guest may exist in whatever state, m being
// the migration that has it, if any.
func Places(g fleet.Guest, m fleet.Migration) []fleet.HostID {
	switch {
	case g.State.Ended():
		return nil
	case m.ID == "" || m.Phase.Ended():
		return []fleet.HostID{g.Home}
	}
	return []fleet.HostID{m.From, m.To}
}

// Settled reports whether a guest is at its Home for sure, so that its program
// can be asked about there.
func Settled(m fleet.Migration) bool {
	switch m.Phase {
	case fleet.Switching, fleet.Activating, fleet.Reverting:
		return false
	}
	return true
}
