package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"pagurus/fleet"
)

// This file has the growth of a job: guests that its program asks for while it runs. Until all of them run
// they are not the job's: one that does not start ends the growth and not the job.

// growthRules are the transitions of a growth, for the printed protocol. settleGrowth, StartGrowth and EndGrowth
// carry them out.
var growthRules = [][3]string{
	{"waiting", "there is room for all its guests, which no waiting job has reserved", "starting"},
	{"waiting", "its time is over, or its job does not run any more", "failed"},
	{"starting", "every guest of it runs", "done"},
	{"starting", "a guest of it has ended or is lost, or its time is over", "stopping"},
	{"stopping", "every guest of it has ended or is lost; its job has them no more", "failed"},
	{"starting or stopping", "its job has ended, with all its guests", "failed"},
}

// BeginGrowth notes that a job's program asks for more guests. It waits for room.
func BeginGrowth(j fleet.Job, r fleet.Request, at time.Time) fleet.Job {
	before := j.Growths[max(0, len(j.Growths)-fleet.GrowthsKept+1):]
	j.Growths = append(slices.Clone(before), fleet.Growth{ // snapshots share the old one
		Request: r.ID, Asks: r.Asks, State: fleet.GrowthWaiting, Count: r.Count, At: at, Until: at.Add(r.Within),
	})
	return j
}

// StartGrowth lets the guests of a waiting growth start, which have hosts.
func StartGrowth(j fleet.Job) fleet.Job {
	g, grows := j.Growing()
	if !grows || g.State != fleet.GrowthWaiting {
		return j
	}
	g.State, g.First = fleet.GrowthStarting, j.Size()
	j.Grown += g.Count
	return putGrowth(j, g)
}

// EndGrowth ends a growth that is not done: its guests, if it has any, are stopped when the job is settled. The second result is false
// if nothing changed.
func EndGrowth(j fleet.Job, cause string, at time.Time) (fleet.Job, bool) {
	g, grows := j.Growing()
	switch {
	case grows && g.State == fleet.GrowthWaiting:
		g.State, g.Cause, g.Ended = fleet.GrowthFailed, cause, at
	case grows && g.State == fleet.GrowthStarting:
		g.State, g.Cause = fleet.GrowthStopping, cause
	default:
		return j, false
	}
	return putGrowth(j, g), true
}

// putGrowth replaces a job's newest growth.
func putGrowth(j fleet.Job, g fleet.Growth) fleet.Job {
	j.Growths = slices.Clone(j.Growths) // snapshots share the old one
	j.Growths[len(j.Growths)-1] = g
	return j
}

// settleGrowth makes a running job's growth consistent with its guests. It returns the guests that it stops.
func settleGrowth(j fleet.Job, guests []fleet.Guest, at time.Time) (_ fleet.Job, stopped []fleet.Guest, changed bool) {
	g, grows := j.Growing()
	if !grows || g.State == fleet.GrowthWaiting {
		return j, nil, false
	}
	own := slices.DeleteFunc(slices.Clone(guests), func(o fleet.Guest) bool { return o.Index < g.First })
	if g.State == fleet.GrowthStarting {
		up, cause := 0, ""
		for _, o := range own {
			switch {
			case o.State.Ended() && cause == "":
				cause = fmt.Sprintf("guest %s did not start: %s", o.ID, o.Cause)
			case o.State == fleet.GuestRunning || o.State == fleet.GuestMoving:
				up++
			}
		}
		switch {
		case cause != "":
			g.State, g.Cause, changed = fleet.GrowthStopping, cause, true
		case up == g.Count:
			g.State, g.Ended = fleet.GrowthDone, at
			return putGrowth(j, g), nil, true
		default:
			return j, nil, false
		}
	}
	over := 0
	for _, o := range own {
		next, did := Stop(o, at)
		if did {
			stopped = append(stopped, next)
		}
		if next.State.Ended() {
			over++
		}
	}
	if over == len(own) {
		g.State, g.Ended, changed = fleet.GrowthFailed, at, true
		j.Grown -= g.Count
	}
	if changed {
		j = putGrowth(j, g)
	}
	return j, stopped, changed || len(stopped) > 0
}

// joined are the guests that a job's program has: without those that start for a growth.
func joined(j fleet.Job, guests []fleet.Guest) []fleet.Guest {
	if !slices.ContainsFunc(guests, func(g fleet.Guest) bool { return !j.Joined(g.Index) }) {
		return guests
	}
	return slices.DeleteFunc(slices.Clone(guests), func(g fleet.Guest) bool { return !j.Joined(g.Index) })
}

// growthOver ends what is under way of a growth of a job that has ended with all its guests.
func growthOver(j fleet.Job, at time.Time) fleet.Job {
	if g, grows := j.Growing(); grows {
		g.State, g.Cause, g.Ended = fleet.GrowthFailed, "its job has ended", at
		j = putGrowth(j, g)
	}
	return j
}

// regrown is a job that begins with so many guests: from a checkpoint it has those by which it had grown. What came of growths
// of which it has the guests is known still, for programs that had not been told at the checkpoint.
func regrown(j fleet.Job, guests int) fleet.Job {
	j.Grown = guests - j.Spec.Guests
	j.Growths = slices.DeleteFunc(slices.Clone(j.Growths), func(g fleet.Growth) bool {
		return g.State != fleet.GrowthDone || g.First+g.Count > guests
	})
	return j
}
