// This file lets running jobs grow: by guests that their programs ask for. They are placed all or none, beside what jobs that wait
// have reserved, and what is asked for is waited for until a time that the program gives.
//
// It must not know how guests start. Its tests are scenarios.

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

// mostCause is how many bytes are kept of why a job got no more guests: hosts have reasons each.
const mostCause = 400

// grow begins a growth of a job, which waits for room if there is none now.
func (d *draft) grow(r fleet.Request) (fleet.Answer, error) {
	j, ok := d.Jobs.Find(r.Job)
	if !ok {
		return refuse(r, "there is no job %s; `pagurus job ls` lists them", orNone(r.Job))
	}
	if _, asked := j.GrowthFor(r.ID); asked {
		return fleet.Answer{Job: j.ID}, nil
	}
	left := j.Spec.Grow - j.Grown
	switch _, grows := j.Growing(); {
	case len(r.ID) > requestBytes:
		return refuse(r, "the request's ID has %d bytes; give it one of %d or fewer", len(r.ID), requestBytes)
	case r.Count < 1 || r.Count > fleet.MostGrowth:
		return refuse(r, "a program may ask for 1 to %d guests at once, and not for %d", fleet.MostGrowth, r.Count)
	case r.Within <= 0 || r.Within > fleet.MostGrowthWait:
		return refuse(r, "a program may wait for guests for up to %s, and not for %s", fleet.ShortDuration(fleet.MostGrowthWait), r.Within)
	case !j.Computes():
		return refuse(r, "job %s is %s, and a job grows while its program runs", j.ID, stateWord(j))
	case j.Spec.Grow == 0:
		return refuse(r, "job %s was submitted without --%s, and so has %s and no more", j.ID, fleet.GrowFlag, counted(j.Spec.Guests, "guest"))
	case grows:
		return refuse(r, "%s", growsAlready(j))
	case r.Count > left:
		return refuse(r, "job %s may have %s more (run --%s %d), and not %d", j.ID, counted(left, "guest"), fleet.GrowFlag, j.Spec.Grow, r.Count)
	}
	if reason := quota.RefusedGrowth(d.p.GrowEach, d.grownOf(j.Spec.UID), r.Count); reason != "" {
		return refuse(r, "%s", reason)
	}
	d.Jobs.Put(j.ID, lifecycle.BeginGrowth(j, r, d.at))
	d.dequeue()
	return fleet.Answer{Job: j.ID}, nil
}

// grownOf is by how many guests the jobs of a user have grown.
func (d *draft) grownOf(uid uint32) (n int) {
	if d.p.GrowEach == 0 {
		return 0
	}
	for id := range d.base.Jobs {
		if j, there := d.Jobs.Find(id); there && j.Spec.UID == uid {
			n += quota.Grown(j)
		}
	}
	return n
}

// growsAlready says that a job grows one step at a time.
func growsAlready(j fleet.Job) string {
	return fmt.Sprintf("job %s is getting more guests already; ask again when it has them", j.ID)
}

// growing returns the jobs whose growths are under way, with the changes so far, in the order in which they were asked for.
func (d *draft) growing() (out []fleet.Job) {
	ids := d.l.Growing()
	for i := range d.Jobs.Changes() {
		if c := &d.Jobs.Changes()[i]; !c.Gone && !slices.Contains(ids, c.ID) {
			ids = append(ids, c.ID)
		}
	}
	for _, id := range ids {
		j, there := d.Jobs.Find(id)
		if _, grows := j.Growing(); there && grows && j.State == fleet.JobRunning {
			out = append(out, j)
		}
	}
	slices.SortFunc(out, func(a, b fleet.Job) int {
		x, _ := a.Growing()
		y, _ := b.Growing()
		return cmp.Or(x.At.Compare(y.At), cmp.Compare(a.ID.Number(), b.ID.Number()))
	})
	return out
}

// placeGrowths lets jobs grow for which there is room, after the jobs that wait had their turn.
func (d *draft) placeGrowths(q *queueing) {
	for _, j := range d.growing() {
		if g, _ := j.Growing(); g.State != fleet.GrowthWaiting {
			continue
		}
		chosen, why := d.roomToGrow(q, j)
		if why != "" {
			continue
		}
		from := j.Size()
		j = lifecycle.StartGrowth(j)
		d.Jobs.Put(j.ID, j)
		for i, c := range chosen {
			d.plan(q, c.Host)
			q.plan.TakeRoom(c.Host, reservationOf(j.Spec, 1, d.stays(j.ID), nil))
			d.room().Reserve(c.Host, j.Spec.Need)
			d.Guests.Put(desired.GuestID(j.ID, from+i), lifecycle.GuestOf(d.guestFor(j, from+i, c), "", ""))
		}
	}
}

// roomToGrow chooses hosts for the guests of a waiting growth, beside what is reserved. The second result says why there are
// none now; empty: there are.
func (d *draft) roomToGrow(q *queueing, j fleet.Job) ([]placement.Choice, string) {
	g, _ := j.Growing()
	switch {
	case !j.Computes():
		return nil, "its program does not run any more"
	case d.holdsMoves(j.ID):
		return nil, "a checkpoint of it is being made"
	case q.over:
		return nil, "jobs that wait need the room that there is"
	}
	room := d.room().Clone()
	q.keepFrom(room, d.stays(j.ID))
	s, from := j.Spec, j.Size()
	a := placement.Ask{Need: s.Need, Kind: s.Kind, Site: d.siteOf(s), Only: s.On, Files: s.Machine, Directories: s.Directories()}
	all := make([]fleet.Guest, g.Count)
	for i := range all {
		all[i].Job, all[i].Index = j.ID, from+i
		before := d.Guests.At(desired.GuestID(j.ID, from+i))
		if _, has := d.Hosts.At(before.Home).Facts.Guests[before.ID]; has { // of an earlier growth: it is destroyed first
			a.Except = append(a.Except, before.Home)
		}
	}
	asks := slices.Repeat([]placement.Ask{a}, g.Count)
	larger := j
	larger.Grown += g.Count
	placement.MarkAffinity(room, placement.AffinityView{
		Job: func(fleet.JobID) fleet.Job { return larger }, Site: func(id fleet.GuestID) string { return siteOf(d.View, id) },
	}, all, asks)
	chosen, stuck := room.PlaceAll(asks)
	if stuck < 0 {
		return chosen, ""
	}
	why := fmt.Sprintf("there is no room for guest %d of %d more (%d MiB each)", stuck+1, g.Count, s.Need.MemoryBytes>>20)
	if words := placement.Words(placement.Explain(room, a)); words != "" {
		why += ": " + words
	}
	return nil, why
}

// endGrowths ends growths whose time is over, and those of programs that end.
func (d *draft) endGrowths() {
	for _, j := range d.growing() {
		g, _ := j.Growing()
		late := !d.at.Before(g.Until) || g.Until.Sub(d.at) > fleet.MostGrowthWait // or the clock was set back
		cause := ""
		switch {
		case g.State == fleet.GrowthStopping:
			continue
		case !j.Computes():
			cause = "its program ends"
		case late && g.State == fleet.GrowthWaiting:
			q := d.dequeue() // its last turn
			if j = d.Jobs.At(j.ID); !waitsToGrow(j) {
				continue
			}
			_, cause = d.roomToGrow(q, j)
		case late:
			cause = fmt.Sprintf("its guests did not all start within %s", g.Until.Sub(g.At).Round(time.Second))
		}
		if next, changed := lifecycle.EndGrowth(j, fleet.OneLine(cause, mostCause), d.at); cause != "" && changed {
			d.Jobs.Put(j.ID, next)
			d.settleJob(j.ID)
		}
	}
}

// waitsToGrow reports whether a job waits for room for more guests.
func waitsToGrow(j fleet.Job) bool {
	g, grows := j.Growing()
	return grows && g.State == fleet.GrowthWaiting
}

// GrowthSaid is what a program is told of the growth that it asked for. waits: nothing yet. known is false if the controller has
// not begun it.
func GrowthSaid(s fleet.Snapshot, guest fleet.Guest, w fleet.Wish) (a fleet.WishAnswer, waits, known bool) {
	j := s.Jobs[guest.Job]
	g, known := j.GrowthFor(fleet.WishRequest(guest.ID, w))
	a.ID = w.ID
	switch {
	case !known:
		return a, false, false
	case g.State == fleet.GrowthDone:
		slots, hosts := j.Spec.GrownSlots(), ""
		for i := range g.Count {
			if i > 0 {
				hosts += ","
			}
			hosts += fmt.Sprintf("%s:%d", fleet.GuestName(g.First+i), slots)
		}
		a.Rows = []string{fmt.Sprintf("count %d", g.Count), fmt.Sprintf("first %d", g.First), fmt.Sprintf("slots %d", slots), "hosts " + hosts}
		return a, false, true
	case g.Cause != "":
		a.Code, a.Text = fleet.WishRefused, fmt.Sprintf("job %s got no more guests: %s", j.ID, g.Cause)
		return a, false, true
	}
	return a, true, true
}

// growth says how a job has grown, and what becomes of what its program asked for.
func (e *explainer) growth(j fleet.Job) (out []string) {
	if j.Spec.Grow == 0 {
		return nil
	}
	out = append(out, fmt.Sprintf("Its program may ask for %s more than it began with, and has %d of them.", counted(j.Spec.Grow, "guest"), j.Grown))
	n := len(j.Growths)
	if n == 0 {
		return out
	}
	g := j.Growths[n-1]
	left := fleet.ShortDuration(max(0, g.Until.Sub(e.s.At)).Round(time.Second))
	switch g.State {
	case fleet.GrowthWaiting:
		why := "it waits for its turn"
		d := e.draft()
		if q := d.dequeue(); waitsToGrow(d.Jobs.At(j.ID)) {
			_, why = d.roomToGrow(q, d.Jobs.At(j.ID))
		}
		d.free()
		return append(out, fmt.Sprintf("It has asked for %d more and waits for %s at most: %s.", g.Count, left, why))
	case fleet.GrowthStarting:
		return append(out, fmt.Sprintf("It has asked for %d more, which start; if they do not all run in %s they are stopped.", g.Count, left))
	case fleet.GrowthStopping, fleet.GrowthFailed:
		return append(out, fmt.Sprintf("It asked for %d more %s, and got none: %s.", g.Count, fleet.ShortDuration(e.s.At.Sub(g.At).Round(time.Second))+" ago", g.Cause))
	}
	return out
}
