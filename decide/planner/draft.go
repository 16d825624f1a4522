package planner

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"pagurus/decide/atlas"
	"pagurus/decide/layer"
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

	cluster *fleet.Cluster
	view

	survey *placement.Survey
	freed  bool // a guest or a migration has ended: there may be room now
	calm   bool // a host has just answered that it could not: a further try waits for a Tick
	resend []fleet.Order

	before, now []pending // room for orders
}

func newDraft(p *Planner, l *ledger.Ledger) *draft {
	d := drafts.Get().(*draft)
	d.p, d.l, d.base = p, l, l.Snapshot()
	d.over(d.base)
	return d
}

// drafts are those that are over, for the room they take: a simulator makes a
// hundred thousand a second.
var drafts = sync.Pool{New: func() any { return new(draft) }}

// free gives a draft back. Nothing of it may be read any more.
func (d *draft) free() {
	v := d.view
	v.over(fleet.Snapshot{})
	*d = draft{view: v, before: d.before, now: d.now}
	drafts.Put(d)
}

// change gives what the draft adds to the snapshot, everything in order of ID.
func (d *draft) change() fleet.Changeset {
	c := fleet.Changeset{Cluster: d.cluster}
	c.Hosts, c.GoneHosts = d.hosts.Changed()
	c.Guests, c.GoneGuests = d.guests.Changed()
	c.Jobs, c.GoneJobs = d.jobs.Changed()
	c.Moves, c.GoneMoves = d.moves.Changed()
	c.Migrations, c.GoneMigrations = d.migrations.Changed()
	return c
}

// orders gives what is waited for now and was not before: exactly those have
// to be sent, whatever the change was.
func (d *draft) orders() []fleet.Order {
	out := slices.Clone(d.resend)
	jobs, guests := d.concerned()
	was, is := viewOf(d.base), &d.view
	before, now := d.before, d.now // of one job or guest: an order names whom it is about
	fresh := func() {
		for _, p := range now {
			if !slices.ContainsFunc(before, func(b pending) bool { return b.order == p.order }) && !(d.calm && p.order.Attempt > 0) {
				out = append(out, p.order)
			}
		}
	}
	for _, id := range jobs {
		if j := d.jobs.At(id); j.Spec.Guests > 0 {
			guest0 := atlas.GuestID(id, 0)
			before = programOrder(before[:0], was, d.base.Jobs[id], guest0)
			now = programOrder(now[:0], is, j, guest0)
			fresh()
		}
	}
	for _, id := range guests {
		before, now = guestOrders(before[:0], was, id), guestOrders(now[:0], is, id)
		fresh()
	}
	d.before, d.now = before, now
	slices.SortFunc(out, compareOrders)
	return slices.Compact(out)
}

// concerned names the jobs and guests that may wait for something else now, each
// once. What a job waits for is up to itself and its guest 0.
func (d *draft) concerned() (jobs []fleet.JobID, guests []fleet.GuestID) {
	for i := range d.jobs.Changes() {
		if c := &d.jobs.Changes()[i]; !c.Gone {
			jobs = append(jobs, c.ID)
		}
	}
	for i := range d.guests.Changes() {
		if c := &d.guests.Changes()[i]; !c.Gone {
			if guests = append(guests, c.ID); c.ID == atlas.GuestID(c.Is.Job, 0) {
				jobs = append(jobs, c.Is.Job)
			}
		}
	}
	for i := range d.migrations.Changes() {
		if c := &d.migrations.Changes()[i]; !c.Gone {
			if guests = append(guests, c.Is.Guest); c.Is.Guest == atlas.GuestID(c.Is.Job, 0) {
				jobs = append(jobs, c.Is.Job)
			}
		}
	}
	slices.Sort(jobs)
	slices.Sort(guests)
	return slices.Compact(jobs), slices.Compact(guests)
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
	for i := range d.hosts.Changes() {
		if c := &d.hosts.Changes()[i]; !c.Gone {
			v.Host(c.Is)
		}
	}
	guests := make([]fleet.GuestID, 0, len(d.guests.Changes())+len(d.migrations.Changes()))
	for i := range d.guests.Changes() {
		guests = append(guests, d.guests.Changes()[i].ID)
	}
	for i := range d.migrations.Changes() {
		c := &d.migrations.Changes()[i]
		v.Migration(d.base.Migrations[c.ID], -1)
		if !c.Gone {
			guests = append(guests, c.Is.Guest)
			v.Migration(c.Is, 1)
		}
	}
	slices.Sort(guests)
	for _, id := range slices.Compact(guests) {
		if g, ok := d.base.Guests[id]; ok {
			v.Guest(g, d.base.Migrations[g.Migration], -1)
		}
		if g, ok := d.guests.Find(id); ok {
			v.Guest(g, d.migrations.At(g.Migration), 1)
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

// tally counts a job's guests, at the cost of those that have changed.
func (d *draft) tally(id fleet.JobID) lifecycle.Tally {
	t := d.l.Tally(id)
	for i := range d.guests.Changes() {
		c := &d.guests.Changes()[i]
		if was, ok := d.base.Guests[c.ID]; ok && was.Job == id {
			t.Count(was.State, -1)
		}
		if !c.Gone && c.Is.Job == id {
			t.Count(c.Is.State, 1)
		}
	}
	return t
}

func (d *draft) guestsOf(j fleet.Job) []fleet.Guest {
	out := make([]fleet.Guest, 0, j.Spec.Guests)
	for _, id := range atlas.GuestIDs(j) {
		if g, ok := d.guests.Find(id); ok {
			out = append(out, g)
		}
	}
	return out
}

func (d *draft) membersOf(v fleet.Move) []fleet.Migration {
	out := make([]fleet.Migration, 0, len(v.Migrations))
	for _, id := range v.Migrations {
		if m, ok := d.migrations.Find(id); ok && m.Move == v.ID {
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
		old := d.migrations.At(m.ID)
		if old.Phase == m.Phase && old.Attempt == m.Attempt && old.Since.Equal(m.Since) {
			continue
		}
		d.migrations.Put(m.ID, m)
		if g, ok := d.guests.Find(m.Guest); ok && !old.Phase.Ended() {
			d.guests.Put(g.ID, lifecycle.Follow(g, m))
			jobs = append(jobs, g.Job)
		}
	}
	if v, ok := d.moves.Find(move); ok {
		if v, ended := lifecycle.Conclude(v, d.membersOf(v), d.at); ended {
			d.moves.Put(move, v)
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
	j, ok := d.jobs.Find(id)
	if !ok || j.State == fleet.JobEnded || len(d.guests.Changes()) <= layer.Few && d.tally(id).InLine(j) {
		return
	}
	j, stopped, changed := lifecycle.Settle(j, d.guestsOf(j), d.at)
	if changed {
		d.jobs.Put(id, j)
		d.freed = d.freed || j.State == fleet.JobEnded
	}
	for _, g := range stopped {
		d.guests.Put(g.ID, g)
	}
	if j.State != fleet.JobStopping {
		return
	}
	for _, g := range d.guestsOf(j) {
		m, ok := d.migrations.Find(g.Migration)
		if g.State != fleet.GuestMoving || !ok {
			continue
		}
		cause := "job " + string(id) + " is stopping"
		if given, gave := lifecycle.Abandon(m, d.at, cause); gave {
			d.take(m.Move, []fleet.Migration{given})
			continue
		}
		if members, changed := lifecycle.CallOff(d.membersOf(d.moves.At(m.Move)), d.at, cause); changed {
			d.take(m.Move, members)
		}
	}
}
