package planner

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"pagurus/decide/atlas"
	"pagurus/decide/ledger"
	"pagurus/decide/lifecycle"
	"pagurus/decide/placement"
	"pagurus/fleet"
)

// draft is a snapshot with the changes one Step has made so far. It reads
// through to the snapshot and never copies it whole.
type draft struct {
	p    *Planner
	l    *ledger.Ledger
	base fleet.Snapshot // the ledger's
	at   time.Time

	cluster    *fleet.Cluster
	hosts      layer[fleet.HostID, fleet.Host]
	guests     layer[fleet.GuestID, fleet.Guest]
	jobs       layer[fleet.JobID, fleet.Job]
	moves      layer[fleet.MoveID, fleet.Move]
	migrations layer[fleet.MigrationID, fleet.Migration]

	survey *placement.Survey
	freed  bool // a guest or a migration has ended: there may be room now
	calm   bool // a host has just answered that it could not: a further try waits for a Tick
	resend []fleet.Order
}

// layer is a map with changes laid over it.
type layer[K cmp.Ordered, V any] struct {
	base map[K]V
	put  map[K]V
	gone map[K]bool
}

func newLayer[K cmp.Ordered, V any](base map[K]V) layer[K, V] {
	return layer[K, V]{base: base, put: map[K]V{}, gone: map[K]bool{}}
}

func (l layer[K, V]) find(k K) (V, bool) {
	if l.gone[k] {
		var none V
		return none, false
	}
	if v, ok := l.put[k]; ok {
		return v, true
	}
	v, ok := l.base[k]
	return v, ok
}

func (l layer[K, V]) at(k K) V { v, _ := l.find(k); return v }

func (l layer[K, V]) drop(k K) { delete(l.put, k); l.gone[k] = true }

func (l layer[K, V]) changed() []V {
	var out []V
	for _, k := range slices.Sorted(maps.Keys(l.put)) {
		out = append(out, l.put[k])
	}
	return out
}

func newDraft(p *Planner, l *ledger.Ledger) *draft {
	s := l.Snapshot()
	return &draft{
		p: p, l: l, base: s,
		hosts: newLayer(s.Hosts), guests: newLayer(s.Guests), jobs: newLayer(s.Jobs),
		moves: newLayer(s.Moves), migrations: newLayer(s.Migrations),
	}
}

// change gives what the draft adds to the snapshot, everything in order of ID.
func (d *draft) change() fleet.Changeset {
	return fleet.Changeset{
		Cluster: d.cluster,
		Hosts:   d.hosts.changed(), GoneHosts: slices.Sorted(maps.Keys(d.hosts.gone)),
		Guests: d.guests.changed(), GoneGuests: slices.Sorted(maps.Keys(d.guests.gone)),
		Jobs: d.jobs.changed(), GoneJobs: slices.Sorted(maps.Keys(d.jobs.gone)),
		Moves: d.moves.changed(), GoneMoves: slices.Sorted(maps.Keys(d.moves.gone)),
		Migrations: d.migrations.changed(), GoneMigrations: slices.Sorted(maps.Keys(d.migrations.gone)),
	}
}

// view looks up what the draft has made of the snapshot.
func (d *draft) view() view {
	return view{host: d.hosts.at, guest: d.guests.at, job: d.jobs.at, move: d.moves.at, migration: d.migrations.at}
}

// orders gives what is waited for now and was not before: exactly those have
// to be sent, whatever the change was.
func (d *draft) orders() []fleet.Order {
	jobs, guests := map[fleet.JobID]bool{}, map[fleet.GuestID]bool{}
	for id := range d.jobs.put {
		jobs[id] = true
	}
	for id, g := range d.guests.put {
		guests[id], jobs[g.Job] = true, true
	}
	for _, m := range d.migrations.put {
		guests[m.Guest], jobs[m.Job] = true, true
	}
	was, is := viewOf(d.base), d.view()
	var before, now []pending
	for id := range jobs {
		if j := d.jobs.at(id); j.Spec.Guests > 0 {
			guest0 := atlas.GuestID(id, 0)
			before = programOrder(before, was, d.base.Jobs[id], guest0)
			now = programOrder(now, is, j, guest0)
		}
	}
	for id := range guests {
		before, now = guestOrders(before, was, id), guestOrders(now, is, id)
	}
	out := slices.Clone(d.resend)
	for _, p := range now {
		if !slices.ContainsFunc(before, func(b pending) bool { return b.order == p.order }) && !(d.calm && p.order.Attempt > 0) {
			out = append(out, p.order)
		}
	}
	slices.SortFunc(out, compareOrders)
	return slices.Compact(out)
}

func compareOrders(a, b fleet.Order) int {
	return cmp.Or(
		cmp.Compare(a.Host, b.Host), cmp.Compare(a.Job, b.Job), cmp.Compare(a.Guest, b.Guest),
		cmp.Compare(a.Migration, b.Migration), cmp.Compare(a.Verb, b.Verb),
		cmp.Compare(a.Peer, b.Peer), cmp.Compare(a.Gen, b.Gen), cmp.Compare(a.Attempt, b.Attempt))
}

// room gives the survey that placing goes by. It is made once a Step, after
// what the event itself changed; guests placed later in the Step must be told
// to it.
func (d *draft) room() *placement.Survey {
	if d.survey == nil {
		d.survey = d.newRoom()
	}
	return d.survey
}

// newRoom gives a survey of the snapshot with all the changes there are.
func (d *draft) newRoom() *placement.Survey {
	v := d.l.Room().Survey(d.base.At)
	for _, h := range d.hosts.put {
		v.Host(h)
	}
	guests := map[fleet.GuestID]bool{}
	for id := range d.guests.put {
		guests[id] = true
	}
	for id := range d.guests.gone {
		guests[id] = true
	}
	for id, m := range d.migrations.put {
		guests[m.Guest] = true
		v.Migration(d.base.Migrations[id], -1)
		v.Migration(m, 1)
	}
	for id := range d.migrations.gone {
		v.Migration(d.base.Migrations[id], -1)
	}
	for id := range guests {
		if g, ok := d.base.Guests[id]; ok {
			v.Guest(g, d.base.Migrations[g.Migration], -1)
		}
		if g, ok := d.guests.find(id); ok {
			v.Guest(g, d.migrations.at(g.Migration), 1)
		}
	}
	return v
}

// counters gives the cluster's counters to be changed.
func (d *draft) counters() *fleet.Cluster {
	if d.cluster == nil {
		c := d.base.Cluster
		c.NextJob, c.NextMove = max(c.NextJob, 1), max(c.NextMove, 1)
		d.cluster = &c
	}
	return d.cluster
}

func (d *draft) guestsOf(j fleet.Job) []fleet.Guest {
	out := make([]fleet.Guest, 0, j.Spec.Guests)
	for _, id := range atlas.GuestIDs(j) {
		if g, ok := d.guests.find(id); ok {
			out = append(out, g)
		}
	}
	return out
}

func (d *draft) membersOf(v fleet.Move) []fleet.Migration {
	out := make([]fleet.Migration, 0, len(v.Migrations))
	for _, id := range v.Migrations {
		if m, ok := d.migrations.find(id); ok {
			out = append(out, m)
		}
	}
	return out
}

// take notes what became of a gang: its guests follow, the move ends with its
// last member, and their jobs are brought in line.
func (d *draft) take(move fleet.MoveID, members []fleet.Migration) {
	var jobs []fleet.JobID
	for _, m := range members {
		old := d.migrations.at(m.ID)
		if old.Phase == m.Phase && old.Attempt == m.Attempt && old.Since.Equal(m.Since) {
			continue
		}
		d.migrations.put[m.ID] = m
		if g, ok := d.guests.find(m.Guest); ok && !old.Phase.Ended() {
			d.guests.put[g.ID] = lifecycle.Follow(g, m)
			jobs = append(jobs, g.Job)
		}
	}
	if v, ok := d.moves.find(move); ok {
		if v, ended := lifecycle.Conclude(v, d.membersOf(v), d.at); ended {
			d.moves.put[move] = v
			d.freed = true
		}
	}
	for _, id := range jobs {
		d.settle(id)
	}
}

// settle brings a job in line with its guests, and takes back what is under
// way for guests of a job that is over. It ends because each turn brings a
// guest, a migration or the job further in a table that has an end.
func (d *draft) settle(id fleet.JobID) {
	j, ok := d.jobs.find(id)
	if !ok || j.State == fleet.JobEnded {
		return
	}
	j, stopped, changed := lifecycle.Settle(j, d.guestsOf(j), d.at)
	if changed {
		d.jobs.put[id] = j
		d.freed = d.freed || j.State == fleet.JobEnded
	}
	for _, g := range stopped {
		d.guests.put[g.ID] = g
	}
	if j.State != fleet.JobStopping {
		return
	}
	for _, g := range d.guestsOf(j) {
		m, ok := d.migrations.find(g.Migration)
		if g.State != fleet.GuestMoving || !ok {
			continue
		}
		cause := "job " + string(id) + " is stopping"
		if given, gave := lifecycle.Abandon(m, d.at, cause); gave {
			d.take(m.Move, []fleet.Migration{given})
			continue
		}
		if members, changed := lifecycle.CallOff(d.membersOf(d.moves.at(m.Move)), d.at, cause); changed {
			d.take(m.Move, members)
		}
	}
}
