// This file is what follows when a host is gone: it has been silent for longer than its lease,
// so nothing runs there any more. Before that a silent host may run on, and what it had is
// nowhere else.
//
// It must not know how a host keeps to its lease. Its tests run against hosts that do.

package planner

import (
	"fmt"
	"slices"
	"time"

	"pagurus/decide/health"
	"pagurus/decide/lifecycle"
	"pagurus/decide/placement"
	"pagurus/fleet"
)

// leased reports whether a host's silence ends in its being gone.
func (d *draft) leased(id fleet.HostID) bool { return d.base.Hosts[id].Lease > 0 }

// mayRunOn reports whether a guest may run on a host that does not answer for it, until that is
// gone.
func (d *draft) mayRunOn(id fleet.HostID) bool {
	return d.leased(id) && placement.Unheard(d.base, id, d.at) > 0
}

// mayHaveLost reports whether a job's program, which has failed, may have noticed first that a guest was lost: one whose
// host is silent, and stops its guests when its lease ends.
func (d *draft) mayHaveLost(j fleet.Job) bool {
	return !j.Exited.IsZero() && slices.ContainsFunc(d.guestsOf(j), func(g fleet.Guest) bool { return !g.State.Ended() && d.mayRunOn(g.Home) })
}

// silenceLeast is for how long a host that is heard can seem silent.
const silenceLeast = 3 * time.Second

// silentBefore reports whether a host fell silent before a job's program was known to have ended.
func (d *draft) silentBefore(id fleet.HostID, j fleet.Job) bool {
	seen := d.base.Hosts[id].Facts.SeenAt
	return j.State == fleet.JobStopping && !seen.IsZero() && j.Since.Sub(seen) > silenceLeast
}

// endGone settles what the hosts that are gone had.
func (d *draft) endGone() {
	gone := d.goneHosts()
	for _, id := range gone {
		cause := whyGone(d.base, id, d.at)
		if h, changed := health.Gone(d.Hosts.At(id), d.at); changed {
			d.Hosts.Put(id, h)
		}
		for _, guest := range d.l.GuestsAt(id) {
			stopping := d.Guests.At(guest).State == fleet.GuestStopping
			if g, changed := lifecycle.GuestGone(d.Guests.At(guest), cause, d.at); changed {
				if stopping && d.silentBefore(id, d.Jobs.At(g.Job)) {
					g = lifecycle.DiedUnseen(g, cause, d.at)
				}
				d.Guests.Put(guest, g)
				d.freed = true
				d.lostWith(g, id)
			}
		}
		for _, v := range d.underWay() {
			before := d.membersOf(v)
			members, changed := lifecycle.MigrationsGone(before, id, cause, d.at)
			if !changed {
				continue
			}
			for i, m := range members {
				if m.Phase == fleet.Lost && before[i].Phase == fleet.PostCopying && id == m.From && placement.Unheard(d.base, m.To, d.at) > 0 {
					members[i] = before[i] // the target may have all of it, and says so when it is heard
					continue
				}
				if m.Phase == fleet.Lost {
					d.lostWith(d.Guests.At(m.Guest), id)
				}
			}
			d.recordGang(v.ID, members)
		}
	}
	d.align()
}

// leaveUnheard ends the moves that wait only for a silent host to discard what it has.
func (d *draft) leaveUnheard() {
	unheard := func(host fleet.HostID) bool { return placement.Unheard(d.base, host, d.at) > 0 }
	for _, v := range d.underWay() {
		if members, changed := lifecycle.MigrationsUnheard(d.membersOf(v), unheard, d.at); changed {
			d.recordGang(v.ID, members)
		}
	}
	d.align()
}

// lostWith notes that a guest was lost because a host is gone, on its job. A job is settled
// after this, and fails. Who wants to begin such a job again finds all that failed by a host
// in its LostWith.
func (d *draft) lostWith(g fleet.Guest, host fleet.HostID) {
	d.unaligned = append(d.unaligned, g.Job)
	j, known := d.Jobs.Find(g.Job)
	if !known || g.State == fleet.GuestEnded || j.LostWith != "" || j.Ending != nil || j.State != fleet.JobStarting && j.State != fleet.JobRunning {
		return
	}
	j.LostWith = host
	d.Jobs.Put(j.ID, j)
}

// goneHosts returns the hosts that are gone and may have had something, sorted by ID. Of those that were gone and are heard
// it notes that.
func (d *draft) goneHosts() (out []fleet.HostID) {
	var back []fleet.HostID
	d.l.Room().EachHost(func(h *fleet.Host) { // not the snapshot's: each would be copied
		if !h.Lost && (h.Lease == 0 || d.at.Sub(h.Facts.SeenAt).Abs() <= h.Lease) {
			return
		}
		switch {
		case h.Lost && placement.Heard(*h, d.at):
			back = append(back, h.ID)
		case h.Lease > 0 && d.base.Gone(h.ID, d.at):
			out = append(out, h.ID)
		}
	})
	for _, id := range back {
		h, _ := health.Back(d.Hosts.At(id))
		d.Hosts.Put(id, h)
	}
	slices.Sort(out)
	return out
}

// whyGone says why a host is gone.
func whyGone(s fleet.Snapshot, id fleet.HostID, at time.Time) string {
	return fmt.Sprintf("%s is gone: it has not been heard from for %s, and its lease was %s", id,
		fleet.ShortDuration(s.Silence(id, at).Round(time.Second)), fleet.ShortDuration(s.Hosts[id].Lease))
}

// unheard says what is known of a job's guests whose home is silent.
func (e *explainer) unheard(home fleet.HostID, job fleet.JobID, silent time.Duration) string {
	since := fmt.Sprintf("%s has not been heard from for %s; what runs there may run on.", home, silent.Round(time.Second))
	lease := e.s.Hosts[home].Lease
	if lease == 0 {
		return fmt.Sprintf("%s Start the agent again, or cancel job %s to give it up.", since, job)
	}
	left := lease + fleet.LeaseMargin(lease) - e.s.Silence(home, e.s.At)
	return fmt.Sprintf("%s Start the agent again: in %s the host's lease of %s is certainly over, and what runs there is lost.", since, max(left, 0).Round(time.Second), fleet.ShortDuration(lease))
}

// leaseOf says what a host does when it does not hear the controller.
func leaseOf(h fleet.Host) string {
	if h.Lease == 0 {
		return fmt.Sprintf("It has no lease (agent --%s): its guests run on however long it does not hear the controller, and if it is dead their jobs wait for it until they are cancelled.", fleet.LeaseFlag)
	}
	return fmt.Sprintf("When it does not hear the controller for its lease of %s, it stops its guests.", fleet.ShortDuration(h.Lease))
}
