// This file is what follows when the store was restored from a backup. The backup is older
// than what hosts have done since: guests have moved, with higher generations, have ended or
// have begun. Only hosts know, so nothing is ordered for a guest before they have said it.
//
// It must not know how a backup is made. Its tests run against hosts that went on after one.

package planner

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"pagurus/decide/desired"
	"pagurus/decide/lifecycle"
	"pagurus/decide/state"
	"pagurus/fleet"
)

const (
	// seekFor is how long hosts that have been heard may need to say that they run a guest: a
	// guest that is suspended at the end of a copy runs on within seconds.
	seekFor = 30 * time.Second
	// skipped is by how much a restored cluster's counters rise with each restore, and by one
	// more for each minute since the backup. Hosts have seen names and numbers since then, and a
	// second job of the same name would be taken for the first.
	skipped = 1000
	// mostAhead is by how much numbers that a host names, of jobs and generations, may be above
	// those of the backup. A higher one is no trace of what happened since: it would use up the
	// counter, from which all later names come.
	mostAhead = 1_000_000
	// mostUnrecorded is how many younger jobs get a record by what one host says at once.
	mostUnrecorded = 1000
)

// Restore returns the change that makes a restored store safe to lead from: what had not ended
// is sought, moves are over, and no name, number or join token since the backup can be used twice.
// times is how often this head was restored, with this time: the same backup may be again.
func (p *Planner) Restore(s fleet.Snapshot, backup, at time.Time, times int) fleet.Changeset {
	s.At = at
	d := newDraft(p, state.NewIndex(s, p.Policy))
	defer d.free()
	d.at = at
	c := d.counters()
	c.Restored = &fleet.Restored{At: at, Backup: backup, NextJob: c.NextJob}
	more := skipped*max(times, 1) + int(max(0, at.Sub(backup))/time.Minute)
	c.NextJob, c.NextMove, c.LastHost = c.NextJob+uint64(more), c.NextMove+uint64(more), c.LastHost+uint32(more)
	c.NextSubnet = fleet.Subnet((int(c.NextSubnet) + more) % (int(fleet.MaxSubnet) + 1))
	cause := "the cluster's state was restored from a backup of " + when(backup)
	for id, g := range s.Guests {
		if !g.State.Ended() {
			d.Guests.Put(id, lifecycle.Seek(g, at))
		}
	}
	for id, m := range s.Migrations {
		if !m.Phase.Ended() {
			d.Migrations.Put(id, lifecycle.Interrupt(m, at, cause))
		}
	}
	for id, v := range s.Moves {
		if v, ended := lifecycle.Conclude(v, d.membersOf(v), at); ended {
			d.Moves.Put(id, v)
		}
	}
	for id, j := range s.Jobs {
		if j.Checkpoints > 0 || j.State == fleet.JobRunning {
			j.Checkpoints += more // vaults may have seen the next names since
			d.Jobs.Put(id, j)
		}
		if j.Requeue || j.Suspending { // it may have been begun again since
			j.Requeue, j.Suspending = false, false
			j.Cause = strings.TrimPrefix(j.Cause+"; ", "; ") + cause + ", and so it is not begun again by itself"
			d.Jobs.Put(id, j)
		}
		if j, was := lifecycle.Cancel(j, at, 0, cause+", and it may have begun since"); was && d.Jobs.At(id).State == fleet.JobPending {
			d.Jobs.Put(id, j)
		}
		d.settleJob(id)
	}
	for _, c := range s.Checkpoints {
		if c.Phase.Traits().Forward {
			c, _ = lifecycle.RemoveCheckpoint(c, cause, at)
			d.Checkpoints.Put(c.ID, c)
		}
	}
	for id, h := range s.Hosts { // they may have longer leases since, or none
		if h.Lease > 0 {
			h.Lease = 0 // until their agents say what they have
			d.Hosts.Put(id, h)
		}
	}
	for id := range s.Tokens { // they may have been used up or removed
		d.Tokens.Drop(id)
	}
	return d.change()
}

func when(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// seek gives the guests that are sought a home, or gives them up.
func (d *draft) seek() {
	_, guests := d.l.Restless(d.at)
	slices.Sort(guests)
	for _, id := range guests {
		g := d.Guests.At(id)
		if g.State != fleet.GuestSought {
			continue
		}
		c := claimsOf(d.base, g)
		home := c.runner(g.Home)
		switch {
		case home != "" && (home == g.Home || heard(d.base, g.Home) || d.listened(g.Since) >= seekFor):
			g = lifecycle.Adopt(g, home, c.seen, d.at)
		case len(c.run) > 0, len(unheard(d.base)) > 0, d.listened(g.Since) < seekFor:
			continue
		default:
			g = lifecycle.Lose(g, d.missed(c.told), d.at)
			d.freed = true
		}
		d.Guests.Put(id, g)
		d.unaligned = append(d.unaligned, g.Job)
	}
	d.align()
}

// claims is what hosts say of a guest that is sought.
type claims struct {
	run  []fleet.HostID // say that they run it; if none does, that they have it suspended for their owner
	told []fleet.HostID // have anything of it
	seen uint64         // the highest generation that hosts have seen of it
	runs bool           // it runs, and is not suspended
}

// claimsOf gathers what hosts say, except of generations that no move can have led to.
func claimsOf(s fleet.Snapshot, g fleet.Guest) (c claims) {
	var suspended []fleet.HostID
	for id, h := range s.Hosts {
		f, has := h.Facts.Guests[g.ID]
		if !has || f.Run == fleet.Absent || f.Gen > g.Gen && f.Gen-g.Gen > mostAhead {
			continue
		}
		c.told, c.seen = append(c.told, id), max(c.seen, f.Gen)
		switch {
		case f.Gen < g.Gen:
		case f.Run == fleet.Running:
			c.run = append(c.run, id)
		case f.Run == fleet.Suspended && f.Suspended: // otherwise it may have left for another host
			suspended = append(suspended, id)
		}
	}
	if c.runs = len(c.run) > 0; !c.runs {
		c.run = suspended
	}
	slices.Sort(c.told)
	slices.Sort(c.run)
	return c
}

// runner is the host that runs the guest, of those that say so; empty: none, or it is not known which.
// No two hosts run a guest, though a source may have it suspended while the target does. The one
// where the backup has it is believed, with whatever generation others call theirs: a host that
// joined may say what it likes. Others are believed too, since after a backup a guest may be
// anywhere, but no two of them.
func (c claims) runner(home fleet.HostID) fleet.HostID {
	switch {
	case len(c.run) == 1:
		return c.run[0]
	case c.runs && slices.Contains(c.run, home):
		return home
	}
	return ""
}

// heard reports whether a host was heard since this controller began; one that was removed needs
// not be.
func heard(s fleet.Snapshot, id fleet.HostID) bool {
	h, known := s.Hosts[id]
	return !known || !h.Facts.SeenAt.IsZero()
}

// missed says why a guest that was sought is given up.
func (d *draft) missed(told []fleet.HostID) string {
	since := "the cluster's state was restored"
	if r := d.base.Cluster.Restored; r != nil {
		since += " from a backup of " + when(r.Backup)
	}
	if len(told) > 0 {
		return fmt.Sprintf("%s, and it was between hosts then: what %s has of it does not run", since, fleet.Enumerate(strs(told), "and"))
	}
	return since + ", and no host runs it: it may have ended since then"
}

// unheard are the hosts that have not been heard from since this controller began.
func unheard(s fleet.Snapshot) (out []fleet.HostID) {
	for id, h := range s.Hosts {
		if h.Facts.SeenAt.IsZero() {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

func strs(ids []fleet.HostID) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = string(id)
	}
	return out
}

// attached handles what a host that has come says of its guests, before it is told what it is to
// have: it may run guests that are sought, and guests of jobs that a backup is too old for. Those
// cannot be kept, since only the lost state knew their network and files. They get a record, so
// that whoever waits for the job is told.
func (d *draft) attached(host fleet.HostID) {
	r := d.base.Cluster.Restored
	if r == nil {
		return
	}
	d.seek()
	recorded := 0
	for _, id := range sortedKeys(d.base.Hosts[host].Facts.Guests) {
		job, index, number := parts(id)
		if _, known := d.Guests.Find(id); known || number < r.NextJob || number-r.NextJob > mostAhead || number == math.MaxUint64 {
			continue
		}
		if recorded++; recorded > mostUnrecorded {
			break
		}
		cause := fmt.Sprintf("the cluster's state was restored from a backup of %s, which is older than this job: its guests were ended, run it again", when(r.Backup))
		j, g := lifecycle.Unrecorded(fleet.Guest{ID: id, Job: job, Index: index}, host, cause, d.at)
		if before, known := d.Jobs.Find(job); known {
			before.Spec.Guests = max(before.Spec.Guests, j.Spec.Guests)
			j = before
		}
		d.Jobs.Put(job, j)
		d.Guests.Put(id, g)
		for i, other := range desired.GuestIDs(j) { // which other hosts may have
			if _, known := d.Guests.Find(other); !known {
				_, g := lifecycle.Unrecorded(fleet.Guest{ID: other, Job: job, Index: i}, "", cause, d.at)
				d.Guests.Put(other, g)
			}
		}
		if c := d.counters(); number >= c.NextJob {
			c.NextJob = number + 1
		}
	}
	d.endRestore()
}

// overtaken has a guest sought if a host has seen a newer generation of it than the store knows, and all that
// move with it. Generations are committed before any order has them, so the store was put back from a copy
// without `pagurus restore`, which has all guests sought. Otherwise every order for it is refused as too old,
// without end. It reports whether it did.
func (d *draft) overtaken(r fleet.Report) bool {
	g, known := d.Guests.Find(r.Order.Guest)
	if !known || r.Outcome != fleet.Failed || g.State.Ended() || g.State == fleet.GuestSought || r.Order.Born != g.Born {
		return false
	}
	m := d.Migrations.At(g.Migration)
	takesPart := r.Order.Host == g.Home || g.Migration != "" && (r.Order.Host == m.From || r.Order.Host == m.To)
	if newest := max(g.Gen, m.Gen); !takesPart || r.Seen <= newest || r.Seen-newest > mostAhead {
		return false
	}
	lost := []fleet.Guest{g}
	if v, moves := d.Moves.Find(m.Move); moves {
		for _, m := range d.membersOf(v) {
			if other := d.Guests.At(m.Guest); other.ID != g.ID && other.Migration == m.ID && !m.Phase.Ended() {
				lost = append(lost, other)
			}
			d.Migrations.Put(m.ID, lifecycle.Interrupt(m, d.at, "the cluster's state is older than what hosts have done: it was put back from a copy"))
		}
		if v, ended := lifecycle.Conclude(v, d.membersOf(v), d.at); ended {
			d.Moves.Put(v.ID, v)
		}
	}
	for _, g := range lost {
		d.Guests.Put(g.ID, lifecycle.Seek(g, d.at))
		d.unaligned = append(d.unaligned, g.Job)
	}
	return true
}

// endRestore ends what follows a restore when nothing is sought any more and every host has said
// what it runs. From then on hosts are asked for nothing but their guests: a name that the cluster
// does not know is one that it has forgotten.
func (d *draft) endRestore() {
	if d.base.Cluster.Restored == nil || len(unheard(d.base)) > 0 {
		return
	}
	for id := range d.base.Guests {
		if d.Guests.At(id).State == fleet.GuestSought {
			return
		}
	}
	d.counters().Restored = nil
}

func sortedKeys(m map[fleet.GuestID]fleet.GuestFacts) []fleet.GuestID {
	out := make([]fleet.GuestID, 0, len(m))
	for id := range m {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// parts takes the name of a guest apart, "j7g2"; the number is 0 if it has another form.
func parts(id fleet.GuestID) (job fleet.JobID, index int, number uint64) {
	name, at, found := strings.Cut(string(id), "g")
	digits, isJob := strings.CutPrefix(name, "j")
	n, err := strconv.ParseUint(digits, 10, 64)
	i, wrong := strconv.Atoi(at)
	if !found || !isJob || err != nil || wrong != nil || i < 0 || i >= fleet.MaxGuestsPerJob {
		return "", 0, 0
	}
	return fleet.JobID(name), i, n
}

// sought says what a guest that is sought waits for.
func (e *explainer) sought(g fleet.Guest) []string {
	out := []string{fmt.Sprintf("The cluster's state was restored from a backup, which has it on %s. It is sought: the host that says that it runs it becomes its home, and nothing is ordered for it before.", g.Home)}
	if silent := unheard(e.s); len(silent) > 0 {
		out = append(out, fmt.Sprintf("Not heard from yet: %s. Start their agents, remove a host that is gone for good with `pagurus forget`, or cancel job %s to give the guest up.", fleet.Enumerate(strs(silent), "and"), g.Job))
	}
	c := claimsOf(e.s, g)
	switch home := c.runner(g.Home); {
	case home == "" && len(c.run) > 0:
		out = append(out, fmt.Sprintf("%s say that they have it, and only one can: look there, and remove one that does not with `pagurus forget`.", fleet.Enumerate(strs(c.run), "and")))
	case home != "" && home != g.Home:
		out = append(out, fmt.Sprintf("%s says that it runs it, and nothing but its word says so: %s has %s to say otherwise.", home, g.Home, fleet.ShortDuration(seekFor)))
	}
	return out
}
