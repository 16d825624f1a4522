package planner

import (
	"slices"
	"time"

	"pagurus/decide/desired"
	"pagurus/decide/lifecycle"
	"pagurus/decide/placement"
	"pagurus/decide/state"
	"pagurus/fleet"
)

// draft is a snapshot with the changes that one Step has made so far. It reads through to
// the snapshot and never copies all of it.
type draft struct {
	p    *Planner
	l    *state.Index
	base fleet.Snapshot // the index's
	at   time.Time

	cluster *fleet.Cluster
	*state.View

	survey    *placement.Survey
	freed     bool // a guest or migration has ended: there may be room now
	noRetry   bool // a host has just answered failed: the next try waits for a Tick
	resend    []fleet.Order
	unaligned []fleet.JobID            // jobs with new reports from guests, see align
	vlans     []uint16                 // given to jobs that begin in this step
	saved     map[fleet.HostID]float64 // how fast hosts have saved; nil: not asked for yet
}

func newDraft(p *Planner, l *state.Index) *draft {
	return &draft{p: p, l: l, base: l.Snapshot(), View: l.View()}
}

// free releases the draft's memory. The draft must not be used afterwards.
func (d *draft) free() { d.l.Return(d.View) }

// change returns the draft's changes, sorted by ID.
func (d *draft) change() fleet.Changeset {
	c := fleet.Changeset{Cluster: d.cluster}
	c.Hosts, c.GoneHosts = d.Hosts.Changed()
	c.Guests, c.GoneGuests = d.Guests.Changed()
	c.Jobs, c.GoneJobs = d.Jobs.Changed()
	c.Moves, c.GoneMoves = d.Moves.Changed()
	c.Migrations, c.GoneMigrations = d.Migrations.Changed()
	c.Checkpoints, c.GoneCheckpoints = d.Checkpoints.Changed()
	c.Users, c.GoneUsers = d.Users.Changed()
	c.Tokens, c.GoneTokens = d.Tokens.Changed()
	return c
}

// orders returns the orders that are outstanding now and were not before: exactly those
// must be sent.
func (d *draft) orders() []fleet.Order {
	jobs, guests := d.concerned()
	out := append(slices.Grow([]fleet.Order(nil), len(d.resend)+len(guests)), d.resend...)
	out = slices.DeleteFunc(out, func(o fleet.Order) bool { return !d.cutWaits(o) })
	before, now := make([]pending, 0, 2), make([]pending, 0, 2) // of one job or guest: an order names its subject
	fresh := func() {
		for _, p := range now {
			if !slices.ContainsFunc(before, func(b pending) bool { return b.order == p.order }) && !(d.noRetry && p.order.Attempt > 0) {
				out = append(out, p.order)
			}
		}
	}
	for _, id := range d.concernedCheckpoints(guests) {
		was, c := d.base.Checkpoints[id], d.Checkpoints.At(id)
		before, now = checkpointOrders(before[:0], &was, d.guestBefore), checkpointOrders(now[:0], &c, d.Guests.At)
		fresh()
	}
	for _, id := range guests {
		was, g := d.base.Guests[id], d.Guests.At(id)
		before, now = guestOrders(before[:0], &was, d.migration), guestOrders(now[:0], &g, d.Migrations.At)
		fresh()
		if g.Index == 0 { // a job's order depends only on the job and this guest
			jobs = append(jobs, g.Job)
		}
	}
	slices.Sort(jobs)
	for _, id := range slices.Compact(jobs) {
		if j := d.Jobs.At(id); j.Spec.Guests > 0 {
			guest0 := desired.GuestID(id, 0)
			was, g := d.base.Guests[guest0], d.Guests.At(guest0)
			before = programOrder(before[:0], d.base.Jobs[id], was, d.base.Migrations[was.Migration])
			now = programOrder(now[:0], j, g, d.Migrations.At(g.Migration))
			fresh()
		}
	}
	slices.SortFunc(out, fleet.Order.Compare)
	return slices.Compact(out)
}

// migration returns a migration as it was before this Step.
func (d *draft) migration(id fleet.MigrationID) fleet.Migration { return d.base.Migrations[id] }

// guestBefore returns a guest as it was before this Step.
func (d *draft) guestBefore(id fleet.GuestID) fleet.Guest { return d.base.Guests[id] }

// cutWaits is false for an order about a checkpoint that nothing waits for any more: a host may be gone since it was last tried.
func (d *draft) cutWaits(o fleet.Order) bool {
	if o.Checkpoint == "" || o.Verb == fleet.Restore {
		return true
	}
	c := d.Checkpoints.At(o.Checkpoint)
	return slices.ContainsFunc(checkpointOrders(nil, &c, d.Guests.At), func(p pending) bool { return p.order == o })
}

// concernedCheckpoints names the checkpoints whose orders may have changed, without duplicates.
func (d *draft) concernedCheckpoints(guests []fleet.GuestID) (out []fleet.CheckpointID) {
	for i := range d.Checkpoints.Changes() {
		if c := &d.Checkpoints.Changes()[i]; !c.Gone {
			out = append(out, c.ID)
		}
	}
	for _, id := range guests {
		if g := d.Guests.At(id); g.State != d.base.Guests[id].State {
			out = append(out, d.l.CheckpointsOf(g.Job)...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// concerned names the jobs that changed, and the guests whose orders may have changed,
// without duplicates.
func (d *draft) concerned() (jobs []fleet.JobID, guests []fleet.GuestID) {
	for i := range d.Jobs.Changes() {
		if c := &d.Jobs.Changes()[i]; !c.Gone {
			jobs = append(jobs, c.ID)
		}
	}
	guests = make([]fleet.GuestID, 0, len(d.Guests.Changes())+len(d.Migrations.Changes()))
	for i := range d.Guests.Changes() {
		if c := &d.Guests.Changes()[i]; !c.Gone {
			guests = append(guests, c.ID)
		}
	}
	for i := range d.Migrations.Changes() {
		if c := &d.Migrations.Changes()[i]; !c.Gone {
			guests = append(guests, c.Is.Guest)
		}
	}
	slices.Sort(guests)
	return jobs, slices.Compact(guests)
}

// room returns the survey for placement. It is made once a Step, after the event's own
// changes. Guests placed later in the Step must be added to it.
func (d *draft) room() *placement.Survey {
	if d.survey == nil {
		d.survey = d.newRoom()
	}
	return d.survey
}

// newRoom makes a survey of the snapshot with the changes so far.
func (d *draft) newRoom() *placement.Survey {
	v := d.l.Room().Survey(d.base.At)
	for i := range d.Hosts.Changes() {
		if c := &d.Hosts.Changes()[i]; !c.Gone {
			v.Host(c.Is)
		}
	}
	guests := make([]fleet.GuestID, 0, len(d.Guests.Changes())+len(d.Migrations.Changes()))
	for i := range d.Guests.Changes() {
		guests = append(guests, d.Guests.Changes()[i].ID)
	}
	for i := range d.Migrations.Changes() {
		c := &d.Migrations.Changes()[i]
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
		if g, ok := d.Guests.Find(id); ok {
			v.Guest(g, d.Migrations.At(g.Migration), 1)
		}
	}
	return v
}

// counters returns the cluster's counters for changing.
func (d *draft) counters() *fleet.Cluster {
	if d.cluster == nil {
		c := d.base.Cluster
		c.NextJob, c.NextMove = max(c.NextJob, 1), max(c.NextMove, 1)
		d.cluster = &c
	}
	return d.cluster
}

// tally counts a job's guests; its cost depends only on those that changed.
func (d *draft) tally(id fleet.JobID) lifecycle.Tally {
	t := d.l.Tally(id)
	for i := range d.Guests.Changes() {
		c := &d.Guests.Changes()[i]
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
	out := make([]fleet.Guest, 0, j.Size())
	for _, id := range desired.GuestIDs(j) {
		if g, ok := d.Guests.Find(id); ok {
			out = append(out, g)
		}
	}
	return out
}

func (d *draft) membersOf(v fleet.Move) []fleet.Migration {
	out := make([]fleet.Migration, 0, len(v.Migrations))
	for _, id := range v.Migrations {
		if m, ok := d.Migrations.Find(id); ok && m.Move == v.ID {
			out = append(out, m)
		}
	}
	return out
}

// recordGang records a gang's new state: its guests follow, the move ends with its last
// member, and their jobs are settled.
func (d *draft) recordGang(move fleet.MoveID, members []fleet.Migration) {
	var jobs []fleet.JobID
	for _, m := range members {
		old := d.Migrations.At(m.ID)
		if old.Phase == m.Phase && old.Attempt == m.Attempt && old.Since.Equal(m.Since) {
			continue
		}
		d.Migrations.Put(m.ID, m)
		if g, ok := d.Guests.Find(m.Guest); ok && !old.Phase.Ended() {
			d.Guests.Put(g.ID, lifecycle.FollowMigration(g, m))
			jobs = append(jobs, g.Job)
		}
	}
	if v, ok := d.Moves.Find(move); ok {
		if v, ended := lifecycle.Conclude(v, d.membersOf(v), d.at); ended {
			d.Moves.Put(move, v)
			d.freed = true
		}
	}
	for _, id := range jobs {
		d.settleJob(id)
	}
}

// settleJob makes a job consistent with its guests, and cancels migrations of guests
// whose job is over. It terminates because each turn advances a guest, a migration or the
// job in a finite table.
func (d *draft) settleJob(id fleet.JobID) {
	j, ok := d.Jobs.Find(id)
	if !ok || j.State == fleet.JobEnded || len(d.Guests.Changes()) <= max(state.FewChanges, j.Size()) && d.tally(id).InLine(j) {
		return
	}
	guests := d.guestsOf(j)
	was := j.State
	j, stopped, changed := lifecycle.SettleJob(j, guests, d.at)
	if changed {
		d.Jobs.Put(id, j)
		if newest := d.newest(j); newest != j.Newest { // one cannot be restored
			j = lifecycle.CheckpointOver(j, fleet.Checkpoint{Incarnation: -1}, newest, 0, d.at)
			d.Jobs.Put(id, j)
		}
		if was != j.State && j.State == fleet.JobEnded && j.Result == fleet.JobFinished {
			d.endCheckpoints(id, false, "its job has finished")
		}
		d.freed = d.freed || j.State == fleet.JobEnded
	}
	for _, g := range stopped {
		d.Guests.Put(g.ID, g)
	}
	cause := "job " + string(id) + " is stopping"
	if growth, grows := j.Growing(); j.State == fleet.JobRunning && grows && growth.State == fleet.GrowthStopping {
		guests, cause = guests[min(growth.First, len(guests)):], "the guests that "+string(id)+" was to have more are stopped"
	} else if j.State != fleet.JobStopping {
		return
	}
	for i := range guests {
		g := &guests[i] // moving guests are not stopped
		m, ok := d.Migrations.Find(g.Migration)
		if g.State != fleet.GuestMoving || !ok {
			continue
		}
		if given, gave := lifecycle.Abandon(m, d.at, cause); gave && !d.mayRunOn(m.To) {
			d.recordGang(m.Move, []fleet.Migration{given})
			continue
		}
		if members, changed := lifecycle.CancelGang(d.membersOf(d.Moves.At(m.Move)), d.at, cause); changed {
			d.recordGang(m.Move, members)
		}
	}
}
