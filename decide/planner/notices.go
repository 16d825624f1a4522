// This file carries out what package vacating decides: it asks what moving and saving the guests of a host would take, which goes
// away, begins checkpoints, and ends at the last moment what has been saved.
//
// It must not know who gives notice.

package planner

import (
	"fmt"
	"strings"
	"time"

	"pagurus/decide/lifecycle"
	"pagurus/decide/owners"
	"pagurus/decide/placement"
	"pagurus/decide/vacating"
	"pagurus/fleet"
)

const (
	// noticeTries is how often a checkpoint is begun for one notice.
	noticeTries = 3
	// savedLately is how old a checkpoint may be that was made for a notice of another host.
	savedLately = 2 * time.Minute
	// farAhead: with more time than this left, a host is emptied as in any drain, also by moves of some of a job's guests.
	farAhead = 10 * time.Minute
)

// noticePlan says what becomes of the jobs on a host that goes away.
func (d *draft) noticePlan(h fleet.Host) []vacating.Verdict {
	var cases []vacating.Case
	guests := d.staying(h.ID)
	for len(guests) > 0 {
		n := 1
		for n < len(guests) && guests[n].Job == guests[0].Job {
			n++
		}
		cases = append(cases, d.noticeCase(h, guests[:n]))
		guests = guests[n:]
	}
	n, _ := h.Facts.Notices.Urgent(h.Waived)
	return vacating.Plan(d.at, h.EmptyBy, n.Guess, cases)
}

// staying returns the guests that run on a host and do not move yet, by job and index.
func (d *draft) staying(id fleet.HostID) (out []fleet.Guest) {
	for _, g := range d.l.GuestsAt(id) {
		if g := d.Guests.At(g); g.State == fleet.GuestRunning {
			out = append(out, g)
		}
	}
	return inOrder(out)
}

// noticeCase asks what moving and saving the guests of one job would take.
func (d *draft) noticeCase(h fleet.Host, guests []fleet.Guest) vacating.Case {
	j := d.Jobs.At(guests[0].Job)
	c := vacating.Case{Job: j.ID, CPUs: j.Size() * max(j.Spec.Need.CPUs, 1)}
	since := orElse(j.Started, j.Since)
	for _, p := range d.checkpointsOf(j.ID) {
		if p.Phase == fleet.Kept && p.Cut.After(since) {
			since = p.Cut
		}
		c.Saved = c.Saved || p.Phase == fleet.Kept && (p.Notice == vacating.Names(h) || p.Notice != "" && d.at.Sub(p.Cut) < savedLately)
	}
	c.Risk = d.at.Sub(since)
	all := d.guestsOf(j)
	one := fleet.Checkpoint{Job: j.ID}
	parts, reason := d.vaults(j, all, one)
	c.Save = d.savesIn(j, parts)
	if reason != "" {
		c.Unsaved = reason
	} else if !j.Computes() {
		c.Unsaved = fmt.Sprintf("job %s is %s", j.ID, stateWord(j))
	} else if reason := d.overQuota(j, one, 0); reason != "" {
		c.Unsaved = reason
	}
	for _, g := range guests {
		if what := placement.Hindered(d.base, g); what != "" {
			c.Stays = what
			return c
		}
	}
	to, ok := d.seats(guests)
	if !ok {
		c.Stays = "no host has room for its guests"
		return c
	}
	v := fleet.Move{Drains: h.ID, Limits: d.noticeLimits(h)}
	how := d.choose(guests, to, v, nil)
	for _, p := range d.expect(guests, to, v, how.mode) {
		c.Move = max(c.Move, p.Total.High)
	}
	return c
}

// seats finds room for all of some guests, also on hosts that take in others now.
func (d *draft) seats(guests []fleet.Guest) (map[fleet.GuestID]placement.Choice, bool) {
	var asks []placement.Ask
	for _, g := range guests {
		asks = append(asks, placement.Leaving(d.base, g))
	}
	room := d.room().Clone()
	affinityIn(d.View, room, guests, asks)
	chosen, stuck := room.PlaceAll(asks)
	if stuck >= 0 {
		return nil, false
	}
	to := map[fleet.GuestID]placement.Choice{}
	for i, g := range guests {
		to[g.ID] = chosen[i]
	}
	return to, true
}

// noticeLimits are the limits of moves off a host: guests that are not ready before it goes away stay.
func (d *draft) noticeLimits(h fleet.Host) fleet.Limits {
	l := h.Leave
	if left := h.EmptyBy.Sub(d.at); !h.EmptyBy.IsZero() && left > 0 { // what is still there after its time has no end to keep
		l.Deadline = max(left-vacating.Margin, time.Second)
	}
	return l
}

// urgent returns the guests that are to leave a host which goes away, in the order that saves most.
func (d *draft) urgent(h fleet.Host) (out []fleet.Guest) {
	if left := h.EmptyBy.Sub(d.at); left > 0 && left <= vacating.Margin { // a move would be cut in the middle
		return nil
	}
	guests := d.leaving(h.ID)
	for _, v := range d.noticePlan(h) {
		if v.Do == vacating.Move || h.EmptyBy.Sub(d.at) > farAhead {
			for _, g := range guests {
				if g.Job == v.Job {
					out = append(out, g)
				}
			}
		}
	}
	return out
}

// preserve begins the checkpoints of jobs on hosts that go away whose time has come, and ends jobs there at the last moment that
// have one: they go on elsewhere.
func (d *draft) preserve() {
	for _, id := range d.l.Draining() {
		h := d.Hosts.At(id)
		if h.EmptyBy.IsZero() || h.State != fleet.HostDraining || placement.Unheard(d.base, id, d.at) > 0 {
			continue
		}
		for _, v := range d.noticePlan(h) {
			switch {
			case v.Do != vacating.Save || v.Start.After(d.at):
			case !v.Saved:
				d.saveForNotice(h, v.Job)
			case h.EmptyBy.Sub(d.at) <= vacating.Last:
				d.endForNotice(h, v.Job)
			}
		}
	}
}

// saveForNotice begins a checkpoint of a job, unless one is being made.
func (d *draft) saveForNotice(h fleet.Host, id fleet.JobID) {
	tries := 0
	for _, c := range d.checkpointsOf(id) {
		if beingMade(c) {
			return
		}
		if c.Notice == vacating.Names(h) {
			tries++
		}
	}
	j := d.Jobs.At(id)
	if tries >= noticeTries || !j.Computes() {
		return
	}
	c := d.beginCheckpoint(j, whyDraining(h))
	c.Notice = vacating.Names(h)
	d.Checkpoints.Put(c.ID, c)
	d.attendCheckpoint(c.ID)
}

// endForNotice ends a job that goes on elsewhere from its newest checkpoint.
func (d *draft) endForNotice(h fleet.Host, id fleet.JobID) {
	j, changed := lifecycle.Requeue(d.Jobs.At(id), fmt.Sprintf("%s; it goes on where there is room", whyDraining(h)), d.at)
	if changed {
		d.Jobs.Put(id, j)
		d.settleJob(id)
	}
}

// noticed explains the notices of a host, and what is done for the guests that are there.
func (e *explainer) noticed(h fleet.Host) (out []string) {
	if h.Facts.Notices == nil {
		return nil
	}
	for _, n := range h.Facts.Notices.Pending {
		out = append(out, fmt.Sprintf("A notice by %s stands: %s.", n.Kind, n.Sentence(e.s.At)))
	}
	for _, what := range h.Facts.Notices.Blind {
		out = append(out, fmt.Sprintf("Notices cannot be seen: %s.", strings.TrimSuffix(what, ".")))
	}
	switch {
	case h.ForNotice:
		out = append(out, fmt.Sprintf("For that it is emptied, and takes guests again when no notice stands; `pagurus undrain %s` has it take guests all the same.", h.ID))
	case !h.EmptyBy.IsZero():
		out = append(out, "It drains by request, and goes on draining when no notice stands any more.")
	case len(h.Facts.Notices.Pending) > 0:
		return append(out, "A person has had it take guests in spite of that, until there is another notice.")
	}
	if h.EmptyBy.IsZero() || !placement.Heard(h, e.s.At) {
		return out
	}
	d := e.draft()
	defer d.free()
	for _, v := range d.noticePlan(h) {
		out = append(out, v.Sentence(e.s.At))
	}
	return out
}

// whenLeaving says, for people, when a guest leaves a host that is being emptied.
func whenLeaving(h fleet.Host, g fleet.Guest) string {
	if why := vacating.Why(h); why != "" {
		return fmt.Sprintf("in the order that saves most work, since %s", strings.TrimSuffix(why, "."))
	}
	return owners.WhenLeaving(h, g)
}
