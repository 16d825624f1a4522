package ledger

import (
	"slices"

	"pagurus/decide/lifecycle"
	"pagurus/fleet"
)

// stay is what a guest has of hosts' room: most changes leave it as it is.
type stay struct {
	hosts [2]fleet.HostID // no guest is at more
	need  fleet.Resources
}

// stays gives what guests have of hosts' room now.
func (l *Ledger) stays(guests []fleet.GuestID) []stay {
	out := make([]stay, len(guests))
	for i, id := range guests {
		if g, there := l.snap.Guests[id]; there {
			out[i].need = g.Need
			copy(out[i].hosts[:], lifecycle.Places(g, l.snap.Migrations[g.Migration]))
		}
	}
	return out
}

// shift notes where guests have been and are in the room.
func (l *Ledger) shift(was, is []stay) {
	for i := range was {
		if was[i] != is[i] {
			l.room.Hold(was[i].hosts[:], was[i].need, -1)
			l.room.Hold(is[i].hosts[:], is[i].need, 1)
		}
	}
}

// way is the two hosts of a migration that is under way; empty: it is over.
type way struct{ from, to fleet.HostID }

// traffic gives the ways of migrations now.
func (l *Ledger) traffic(migrations []fleet.MigrationID) []way {
	out := make([]way, len(migrations))
	for i, id := range migrations {
		if m, there := l.snap.Migrations[id]; there && !m.Phase.Ended() {
			out[i] = way{m.From, m.To}
		}
	}
	return out
}

// reroute notes in the room which migrations are over and which have begun.
func (l *Ledger) reroute(was, is []way) {
	for i := range was {
		if was[i] != is[i] {
			l.room.Way(was[i].from, was[i].to, -1)
			l.room.Way(is[i].from, is[i].to, 1)
		}
	}
}

// touched names the guests and migrations that a change may move.
func (l *Ledger) touched(c fleet.Changeset) ([]fleet.GuestID, []fleet.MigrationID) {
	guests, migrations := slices.Clone(c.GoneGuests), slices.Clone(c.GoneMigrations)
	for _, g := range c.Guests {
		guests = append(guests, g.ID)
	}
	for _, m := range c.Migrations {
		migrations = append(migrations, m.ID)
		guests = append(guests, m.Guest)
	}
	for _, id := range c.GoneMigrations {
		guests = append(guests, l.snap.Migrations[id].Guest)
	}
	slices.Sort(guests)
	return slices.Compact(guests), migrations
}
