package state

import (
	"slices"

	"pagurus/decide/lifecycle"
	"pagurus/fleet"
)

// stay is a guest's use of hosts; most changes do not affect it.
type stay struct {
	hosts [2]fleet.HostID // a guest is at no more
	need  fleet.Resources
}

// scratch is buffers for changes, reused by the next.
type scratch struct {
	guests     []fleet.GuestID
	migrations []fleet.MigrationID
	was, is    []stay
	from, to   []way
}

// stay returns a guest's use of hosts, with its migration in the present snapshot.
func (l *Index) stay(g *fleet.Guest) stay {
	s := stay{need: g.Need}
	var m fleet.Migration
	if g.Migration != "" {
		m = l.snap.Migrations[g.Migration]
	}
	copy(s.hosts[:], lifecycle.Places(*g, m))
	return s
}

// stays returns the present use of hosts by guests, in the given buffer.
func (l *Index) stays(out []stay, guests []fleet.GuestID) []stay {
	out = out[:0]
	for _, id := range guests {
		g := l.snap.Guests[id]
		out = append(out, l.stay(&g))
	}
	return out
}

// touched reports whether the change includes a migration of a guest: its hosts are known
// when both have changed.
func (l *Index) touched(id fleet.GuestID) bool {
	_, is := slices.BinarySearch(l.scratch.guests, id)
	return is
}

// shift updates the hosts' room for a guest's change.
func (l *Index) shift(was, is stay) {
	if was != is {
		l.room.Occupy(was.hosts[:], was.need, -1)
		l.room.Occupy(is.hosts[:], is.need, 1)
	}
}

// way is the hosts of a migration in progress; empty: it has ended.
type way struct{ from, to fleet.HostID }

// traffic returns the present ways of migrations, in the given buffer.
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

// reroute updates the hosts' room for migrations that have ended or begun.
func (l *Index) reroute(was, is []way) {
	for i := range was {
		if was[i] != is[i] {
			l.room.Way(was[i].from, was[i].to, -1)
			l.room.Way(is[i].from, is[i].to, 1)
		}
	}
}

// touch records which migrations change, with their guests.
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
