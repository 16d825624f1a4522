package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"pagurus/fleet"
)

// This file says what becomes of guests when a host is gone: its lease is over, and so nothing
// runs there and nothing ever will of what it was ordered before.

// goneGuests says where the states of a guest that is not moving lead when its home is gone.
var goneGuests = []struct{ in, to fleet.GuestState }{
	{fleet.GuestStarting, fleet.GuestLost},
	{fleet.GuestRestoring, fleet.GuestLost},
	{fleet.GuestRestored, fleet.GuestLost},
	{fleet.GuestResuming, fleet.GuestLost},
	{fleet.GuestRunning, fleet.GuestLost},
	{fleet.GuestStopping, fleet.GuestEnded}, // which is what was wanted
}

// gonePhases says where a migration's phases lead when its source or its target is gone. Empty:
// the migration goes on.
var gonePhases = []struct{ in, source, target fleet.Phase }{
	{in: fleet.Preparing, source: fleet.Lost, target: fleet.Discarding},
	{in: fleet.Waiting, source: fleet.Lost, target: fleet.Discarding},
	{in: fleet.Copying, source: fleet.Lost, target: fleet.Cancelling},
	{in: fleet.Ready, source: fleet.Lost, target: fleet.Cancelling},
	// The target may have the whole guest, and only it knows.
	{in: fleet.Switching, source: fleet.Activating},
	{in: fleet.Activating, target: fleet.Lost},
	// What had not arrived when the source stopped its guests never will.
	{in: fleet.PostCopying, source: fleet.Lost, target: fleet.Lost},
	{in: fleet.Retiring, source: fleet.Finished, target: fleet.Lost},
	{in: fleet.Cancelling, source: fleet.Lost},
	{in: fleet.Reverting, source: fleet.Lost},
	{in: fleet.Discarding, source: fleet.Lost, target: fleet.Aborted},
}

// GuestGone applies that a guest's home is gone. Gone applies it to those that move. The second
// result is false if nothing changed.
func GuestGone(g fleet.Guest, cause string, at time.Time) (fleet.Guest, bool) {
	for _, a := range goneGuests {
		if a.in == g.State {
			g.State, g.Attempt, g.Since = a.to, 0, at
			if a.to == fleet.GuestLost {
				g.Cause, g.HostFault = cause, true
			}
			return g, true
		}
	}
	return g, false
}

// DiedUnseen is a guest that was told to stop, on a host that had been silent before and is gone: it may have died before.
func DiedUnseen(g fleet.Guest, cause string, at time.Time) fleet.Guest {
	if g.Remains == nil {
		g.Remains = &fleet.Remains{At: at, Why: cause, Died: true}
	}
	return g
}

// MigrationsGone applies that a host is gone to the members of a gang. Members that have not
// begun to switch do not go without one that is lost. The second result is false if nothing
// changed.
func MigrationsGone(members []fleet.Migration, host fleet.HostID, cause string, at time.Time) ([]fleet.Migration, bool) {
	out, changed, apart := slices.Clone(members), false, false
	for i, m := range out {
		for to := phaseWithout(m, host); to != ""; to = phaseWithout(m, host) {
			apart = apart || !m.Phase.Traits().Committed
			m.Orphan = m.Orphan || m.Phase == fleet.Switching
			m = enter(m, to, at)
			if to != fleet.Finished {
				m.Cause = cause
			}
			out[i], changed = m, true
		}
	}
	if apart {
		out, _ = CancelGang(out, at, fmt.Sprintf("a guest of the same move cannot leave: %s", cause))
	}
	return out, changed
}

// MigrationsUnheard applies that hosts are silent, which may run on. What is to be discarded there waits for its host alone, which
// destroys what is not wanted when it is back: the guest is at its source, and may go elsewhere. The second result is false if
// nothing changed.
func MigrationsUnheard(members []fleet.Migration, unheard func(fleet.HostID) bool, at time.Time) ([]fleet.Migration, bool) {
	out, changed := slices.Clone(members), false
	for i, m := range out {
		if m.Phase == fleet.Discarding && unheard(m.To) {
			out[i], changed = enter(m, fleet.Aborted, at), true
		}
	}
	return out, changed
}

// phaseWithout is where a migration's phase leads when a host is gone; empty: it goes on.
func phaseWithout(m fleet.Migration, host fleet.HostID) fleet.Phase {
	for _, a := range gonePhases {
		switch {
		case a.in != m.Phase:
		case host == m.From:
			return a.source
		case host == m.To:
			return a.target
		}
	}
	return ""
}

const goneText = `
## A host that is gone

A host holds a lease, usually of %s, which every answer of the controller renews. When it
ends, the host stops all of its guests, also without its agent. A host from which
the controller has heard nothing for a lease and a margin is gone: nothing runs
there. No answer is waited for any more, also where one would have been unknown.

A migration that is discarding is aborted once its target is silent, whether that is
gone or not: when it is back, it destroys what it has of the guest by itself.

`

// printGone prints both tables.
func printGone(b *strings.Builder) {
	fmt.Fprintf(b, goneText, fleet.ShortDuration(fleet.UsualLease))
	b.WriteString("| phase | the source is gone | the target is gone |\n| --- | --- | --- |\n")
	for _, a := range gonePhases {
		fmt.Fprintf(b, "| %s | %s | %s |\n", a.in, cmp.Or(a.source, "goes on"), cmp.Or(a.target, "goes on"))
	}
	b.WriteString("\n| guest | its home is gone |\n| --- | --- |\n")
	for _, a := range goneGuests {
		fmt.Fprintf(b, "| %s | %s |\n", a.in, a.to)
	}
}
