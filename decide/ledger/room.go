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

// scratch is room for what a change is about, used again by the next.
type scratch struct {
	guests     []fleet.GuestID
	migrations []fleet.MigrationID
	was, is    []stay
	from, to   []way
}

// stays gives what guests have of hosts' room now, in the room given.
func (l *Ledger) stays(out []stay, guests []fleet.GuestID) []stay {
	out = out[:0]
	for _, id := range guests {
		var s stay
		if g, there := l.snap.Guests[id]; there {
			s.need = g.Need
			var m fleet.Migration
			if g.Migration != "" {
				m = l.snap.Migrations[g.Migration]
			}
			copy(s.hosts[:], lifecycle.Places(g, m))
		}
		out = append(out, s)
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

// traffic gives the ways of migrations now, in the room given.
func (l *Ledger) traffic(out []way, migrations []fleet.MigrationID) []way {
	out = out[:0]
	for _, id := range migrations {
		var w way
		if m, there := l.snap.Migrations[id]; there && !m.Phase.Ended() {
			w = way{m.From, m.To}
		}
		out = append(out, w)
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

// touch notes which guests and migrations a change may move.
func (l *Ledger) touch(c fleet.Changeset) {
	guests, migrations := append(l.work.guests[:0], c.GoneGuests...), append(l.work.migrations[:0], c.GoneMigrations...)
	for i := range c.Guests {
		guests = append(guests, c.Guests[i].ID)
	}
	for i := range c.Migrations {
		migrations = append(migrations, c.Migrations[i].ID)
		guests = append(guests, c.Migrations[i].Guest)
	}
	for _, id := range c.GoneMigrations {
		guests = append(guests, l.snap.Migrations[id].Guest)
	}
	slices.Sort(guests)
	l.work.guests, l.work.migrations = slices.Compact(guests), migrations
}
