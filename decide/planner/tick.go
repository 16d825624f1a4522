package planner

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"pagurus/decide/desired"
	"pagurus/decide/lifecycle"
	"pagurus/decide/placement"
	"pagurus/decide/quota"
	"pagurus/fleet"
)

const (
	// askAgain is how long an order to a silent host is outstanding before it counts as
	// unknown. A restarted agent reconnects within it.
	askAgain = 10 * time.Second
	// slowest and window pace retries after a failed order. The n-th waits n seconds, at
	// most slowest. It is sent with every Tick of the window, so that a late Tick does
	// not skip it; duplicates are harmless. A standing order is then sent every slowest
	// seconds, because it is unknown when it was answered.
	slowest = 10
	window  = 2 * time.Second
	// Guests and moves of ended jobs are kept for an hour for people to look at, and no more
	// than fit a long listing. Ended moves of running jobs are kept longer. The jobs themselves
	// are made small then, and are kept with their output, as long as the Planner says and there are not too many (package
	// quota): the store is no archive.
	keepGuests = time.Hour
	mostGuests = 200 // jobs
	keepMoves  = 24 * time.Hour
	// mostMoves is how many ended moves are kept, with their migrations: a user may have guests go to and fro all day.
	mostMoves = 20_000
)

// tick does what depends only on time.
func (d *draft) tick() error {
	d.evaluateOwners()
	d.setBack()
	d.overrun()
	d.seek()
	d.endRestore()
	d.endGone()
	d.leaveUnheard()
	late, resend := d.due()
	d.resend = resend
	if err := d.heard(late); err != nil {
		return err
	}
	d.bereave()
	d.checkpoints()
	d.preserve()
	d.noRetry = false // these hosts were silent, so waiting longer gains nothing
	d.conduct()
	d.endGrowths()
	d.dequeue()
	d.forgetGuests()
	d.forgetJobs()
	d.forgetMoves()
	d.drain()
	d.relieve()
	d.keepGateways()
	return nil
}

// setBackFor is for how long after the controller began to lead, or its clock was set, what it waits for is looked at for that.
const setBackFor = 10 * time.Second

// setBack has jobs not wait for hours for what was to come before the clock was set back.
func (d *draft) setBack() {
	if d.at.Sub(d.base.LedSince).Abs() > setBackFor {
		return
	}
	jobs, _ := d.l.Restless(d.at)
	jobs = append(jobs, d.l.Planned(d.at.AddDate(1, 0, 0))...)
	slices.Sort(jobs)
	for _, id := range slices.Compact(jobs) {
		j := d.Jobs.At(id)
		if next, changed := lifecycle.SetBack(j, longestInterval, d.at); changed {
			d.Jobs.Put(id, next)
		}
	}
}

// overrun stops the jobs whose grace is over, and tells the programs to end whose time is.
func (d *draft) overrun() {
	jobs, _ := d.l.Restless(d.at)
	slices.Sort(jobs)
	for _, id := range jobs {
		if d.mayHaveLost(d.Jobs.At(id)) {
			continue
		}
		if j, over := lifecycle.Overrun(d.Jobs.At(id), d.at); over {
			d.Jobs.Put(id, j)
			d.settleJob(id)
		}
	}
	for _, id := range d.l.Expired(d.at) {
		j := d.Jobs.At(id)
		if j, changed := lifecycle.Cancel(j, d.at, fleet.UsualGrace, fmt.Sprintf("the time that it was given is over (run --%s %s)", fleet.TimeFlag, fleet.ShortDuration(j.Spec.Time))); changed {
			d.Jobs.Put(id, j)
			d.settleJob(id)
		}
	}
}

// due returns reports for the orders that count as unknown now, and the orders to send
// again now, both in a fixed order.
func (d *draft) due() ([]fleet.Report, []fleet.Order) {
	var late []fleet.Report
	var resend []fleet.Order
	// Other orders cannot become unknown or be retried: no limit is as short as askAgain.
	jobs, guests := d.l.Restless(d.at.Add(-askAgain))
	var waits []pending
	for _, id := range jobs {
		g := d.base.Guests[desired.GuestID(id, 0)]
		waits = programOrder(waits, d.base.Jobs[id], g, d.base.Migrations[g.Migration])
	}
	for _, id := range guests {
		g := d.base.Guests[id]
		waits = guestOrders(waits, &g, d.migration)
	}
	for _, id := range d.l.Working() {
		c := d.base.Checkpoints[id]
		waits = checkpointOrders(waits, &c, d.guestBefore)
	}
	for _, p := range waits {
		out := d.at.Sub(p.since)
		if cause := d.whyUnknown(p.order, d.listened(p.since)); cause != "" {
			late = append(late, fleet.Report{At: d.at, Order: p.order, Outcome: fleet.Unknown, Cause: cause})
			continue
		}
		if p.order.Attempt > 0 && again(p.order, out) {
			resend = append(resend, p.order)
		}
	}
	slices.SortFunc(late, func(a, b fleet.Report) int { return a.Order.Compare(b.Order) })
	return late, resend
}

// again reports whether to send another try now; out is the time since the last.
func again(o fleet.Order, out time.Duration) bool {
	if o.Verb == fleet.Run || o.Verb == fleet.Watch || o.Verb == fleet.End {
		return out%(slowest*time.Second) < window
	}
	pace := time.Duration(min(o.Attempt, slowest)) * time.Second
	return out >= pace && out < pace+window
}

// listened is for how long the controller could have heard an answer to what was asked at
// since: not while it was suspended or did not run, or before its clock was set back.
func (d *draft) listened(since time.Time) time.Duration {
	if d.base.LedSince.After(since) || since.After(d.at) {
		since = d.base.LedSince
	}
	return d.at.Sub(since)
}

// whyUnknown says why an order for whose answer the controller has listened so long will not
// be answered; empty: it may be.
func (d *draft) whyUnknown(o fleet.Order, out time.Duration) string {
	switch o.Verb {
	case fleet.Watch, fleet.Run, fleet.End:
		// They are outstanding until their host reconnects or a person gives it up. A
		// retry would only change the number.
		return ""
	}
	if unheard := placement.Unheard(d.base, o.Host, d.at); unheard > 0 {
		if o.Verb == fleet.Drop && o.Gen == 0 { // its vault has it still when it is back
			return ""
		}
		if out < askAgain || d.leased(o.Host) && o.Verb.UntilGone() {
			return ""
		}
		if d.base.Hosts[o.Host].Facts.SeenAt.IsZero() {
			return fmt.Sprintf("%s has not been heard from since the controller started", o.Host)
		}
		return fmt.Sprintf("%s has not been heard from for %s", o.Host, d.at.Sub(d.base.Hosts[o.Host].Facts.SeenAt).Round(time.Second))
	}
	// An agent answers sooner itself; this is for stuck agents.
	if limit := o.Verb.Patience(d.base.Migrations[o.Migration].Mode, d.base.Guests[o.Guest].Need.MemoryBytes); limit > 0 && out >= limit {
		return fmt.Sprintf("%s did not answer the order to %s within %s", o.Host, o.Verb, limit)
	}
	return ""
}

// forgetGuests removes guests and moves of jobs that ended a while ago.
func (d *draft) forgetGuests() {
	for _, id := range d.l.Accompanied(d.at.Add(-keepGuests), mostGuests) {
		j := d.Jobs.At(id)
		d.forgetGuestsOf(id)
		j.Alone = true
		d.Jobs.Put(id, quota.Shorten(j))
	}
}

// forgetJobs removes jobs that ended long ago.
func (d *draft) forgetJobs() {
	for _, id := range d.l.OldJobs(d.at.Add(-cmp.Or(d.p.KeepJobs, keepGuests))) {
		if j, there := d.Jobs.Find(id); there && j.State == fleet.JobEnded {
			d.forgetJob(id)
		}
	}
}

// forgetJob removes a job with its guests and moves.
func (d *draft) forgetJob(id fleet.JobID) {
	d.forgetGuestsOf(id)
	d.endCheckpoints(id, true, "its job was forgotten")
	d.Jobs.Drop(id)
}

// forgetGuestsOf removes a job's guests and moves.
func (d *draft) forgetGuestsOf(id fleet.JobID) {
	j := d.base.Jobs[id]
	if j.Alone {
		return
	}
	for i := range max(j.Size(), j.Spec.MostGuests()) {
		g := desired.GuestID(id, i)
		if _, there := d.base.Guests[g]; there || i < j.Spec.Guests { // more only if it has grown by them once
			d.Guests.Drop(g)
		}
	}
	d.forgetMigrations(d.l.MigrationsOf(id))
	for _, m := range d.l.MigrationsOf(id) {
		if v, known := d.Moves.Find(d.base.Migrations[m].Move); known && len(d.membersOf(v)) == 0 {
			d.Moves.Drop(v.ID)
		}
	}
}

// forgetMoves removes moves that ended long ago, with their migrations.
func (d *draft) forgetMoves() {
	for _, id := range d.l.OldMoves(d.at.Add(-keepMoves), mostMoves) {
		d.Moves.Drop(id)
		d.forgetMigrations(d.base.Moves[id].Migrations)
	}
	for _, m := range d.l.Faded() {
		d.Migrations.Drop(m)
	}
}

// forgetMigrations removes migrations, but keeps what is useful for learning.
func (d *draft) forgetMigrations(ids []fleet.MigrationID) {
	for _, id := range ids {
		if m, teaches := d.l.Lesson(id); teaches {
			d.Migrations.Put(id, m)
		} else {
			d.Migrations.Drop(id)
		}
	}
}
