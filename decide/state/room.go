package state

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

// stay gives what a guest has of hosts' room, as migrations are in the snapshot now.
func (l *Index) stay(g *fleet.Guest) stay {
	s := stay{need: g.Need}
	var m fleet.Migration
	if g.Migration != "" {
		m = l.snap.Migrations[g.Migration]
	}
	copy(s.hosts[:], lifecycle.Places(*g, m))
	return s
}

// stays gives what guests have of hosts' room now, in the room given.
func (l *Index) stays(out []stay, guests []fleet.GuestID) []stay {
	out = out[:0]
	for _, id := range guests {
		g := l.snap.Guests[id]
		out = append(out, l.stay(&g))
	}
	return out
}

// touched reports whether a migration of a guest changes too: it has its place when
// both have changed.
func (l *Index) touched(id fleet.GuestID) bool {
	_, is := slices.BinarySearch(l.scratch.guests, id)
	return is
}

// shift notes in the room where a guest has been and is.
func (l *Index) shift(was, is stay) {
	if was != is {
		l.room.Occupy(was.hosts[:], was.need, -1)
		l.room.Occupy(is.hosts[:], is.need, 1)
	}
}

// way is the two hosts of a migration that is under way; empty: it is over.
type way struct{ from, to fleet.HostID }

// traffic gives the ways of migrations now, in the room given.
func (l *Index) traffic(out []way, migrations []fleet.MigrationID) []way {
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
func (l *Index) reroute(was, is []way) {
	for i := range was {
		if was[i] != is[i] {
			l.room.Way(was[i].from, was[i].to, -1)
			l.room.Way(is[i].from, is[i].to, 1)
		}
	}
}

// touch notes which migrations change, and the guests that they are of.
func (l *Index) touch(c fleet.Changeset) {
	guests, migrations := l.scratch.guests[:0], append(l.scratch.migrations[:0], c.GoneMigrations...)
	for i := range c.Migrations {
		migrations = append(migrations, c.Migrations[i].ID)
		guests = append(guests, c.Migrations[i].Guest)
	}
	for _, id := range c.GoneMigrations {
		guests = append(guests, l.snap.Migrations[id].Guest)
	}
	slices.Sort(guests)
	l.scratch.guests, l.scratch.migrations = slices.Compact(guests), migrations
}
