package lifecycle

import (
	"cmp"
	"slices"
	"time"

	"pagurus/fleet"
)

// This file says which jobs begin again, and how a job waits and leaves the queue. What is
// begun again is the same job, as its next incarnation.

// startsElsewhere is how often in a row a job's start may fail because of a host before the job
// fails. More would hide a cluster in which nothing starts.
const startsElsewhere = 3

// Enqueue makes a job wait for room from a time on.
func Enqueue(j fleet.Job, why string, at time.Time) fleet.Job {
	j.State, j.Since, j.Attempt, j.Reason = fleet.JobPending, at, 0, why
	j.Requeue, j.Suspending, j.Ending, j.Exit, j.Result, j.Cause = false, false, nil, nil, "", ""
	j.LostWith = ""
	j.Started, j.ShareHost, j.Gateway, j.Subnet, j.VLAN = time.Time{}, "", "", 0, 0
	j.Grown = 0 // until it begins
	return j
}

// GuestOf is a guest of a job that begins, on a host: it boots, or is made from a part of a checkpoint.
func GuestOf(g fleet.Guest, from fleet.CheckpointID, vault fleet.HostID) fleet.Guest {
	g.State = fleet.GuestStarting
	if g.From, g.Vault = from, vault; from != "" {
		g.State = fleet.GuestRestoring
	}
	return g
}

// BeginJob lets a waiting job start with so many guests, on a network and with a host for its files.
func BeginJob(j fleet.Job, guests int, net fleet.Subnet, share fleet.HostID, at time.Time) fleet.Job {
	j = regrown(j, guests)
	j.State, j.Since, j.Attempt, j.Reason = fleet.JobStarting, at, 0, ""
	j.Subnet, j.ShareHost = net, share
	return j
}

// Requeue stops a job that waits for room afterwards, to begin again. The second result is
// false if it is over already.
func Requeue(j fleet.Job, cause string, at time.Time) (fleet.Job, bool) {
	j, changed := Cancel(j, at, 0, cause)
	j.Requeue = j.Requeue || changed && j.State == fleet.JobStopping
	return j, changed
}

// over is a job whose last guest is gone: it has ended, waits to begin again, or is suspended.
func over(j fleet.Job, at time.Time) fleet.Job {
	j.NextCheckpoint = time.Time{}
	if !j.Requeue && !j.Suspending {
		j.State, j.Since, j.Ended = fleet.JobEnded, at, at
		return j
	}
	suspended := j.Suspending
	j = nextIncarnation(j, at)
	if suspended {
		j.State = fleet.JobSuspended
	}
	return j
}

// nextIncarnation makes a job wait to begin again: from the checkpoint that was asked for, else from the newest, else
// from its beginning. From is where it is to begin; the planner takes an older one if what is kept there cannot be had.
func nextIncarnation(j fleet.Job, at time.Time) fleet.Job {
	j.Incarnation++
	j.From = cmp.Or(j.RestartFrom, j.Newest)
	if j.FromBeginning {
		j.From = ""
	}
	return Enqueue(j, j.Cause, at)
}

// Restart begins a job again, from a checkpoint, the newest if none is named, or its beginning. One that runs is stopped first. The second
// result is false if it cannot: it waits already, or its guests are forgotten.
func Restart(j fleet.Job, from fleet.CheckpointID, beginning bool, at time.Time) (fleet.Job, bool) {
	asked := j
	asked.RestartFrom, asked.FromBeginning = from, beginning
	switch j.State {
	case fleet.JobEnded:
		if j.Alone {
			return j, false
		}
		asked.Cause, asked.Ended, asked.Restarted, asked.Elsewhere, asked.Avoid, asked.Unrestorable = "", time.Time{}, 0, 0, nil, nil
		return nextIncarnation(asked, at), true
	case fleet.JobPending:
		if j.From == "" && from == "" { // it begins at its beginning anyway
			return j, false
		}
		asked.Unrestorable = nil
		return nextIncarnation(asked, at), true
	case fleet.JobSuspended:
		asked.From = cmp.Or(from, j.From)
		if beginning {
			asked.From = ""
		}
		return ResumeJob(asked, at)
	case fleet.JobStarting, fleet.JobRunning:
		asked.Unrestorable = nil
		return Requeue(asked, "it was to begin again", at)
	}
	return j, false
}

// SuspendJob ends a running job's guests, once a checkpoint for that is kept; it goes on from there when it is resumed. The
// second result is false if it does not run any more.
func SuspendJob(j fleet.Job, c fleet.CheckpointID, at time.Time) (fleet.Job, bool) {
	if !j.Computes() {
		return j, false
	}
	j = stopping(j, fleet.JobCancelled, "it was to be suspended", at)
	j.Suspending, j.RestartFrom, j.FromBeginning = true, c, false
	return j, true
}

// ResumeJob lets a suspended job wait for room. The second result is false if it is not suspended.
func ResumeJob(j fleet.Job, at time.Time) (fleet.Job, bool) {
	if j.State != fleet.JobSuspended {
		return j, false
	}
	j.State, j.Since, j.Reason = fleet.JobPending, at, ""
	return j, true
}

// FirstCheckpoint is when a job whose plan names no interval has its first checkpoint, which shows what one costs.
const FirstCheckpoint = 10 * time.Minute

// planCheckpoint says when a running job has its next checkpoint, if by its plan; often is the interval where the plan names
// none.
func planCheckpoint(j fleet.Job, at time.Time, often time.Duration) fleet.Job {
	if plan := j.Spec.Checkpoint; plan != nil && j.State == fleet.JobRunning {
		j.NextCheckpoint = at.Add(cmp.Or(plan.Every, often))
	}
	return j
}

// CheckpointOver notes on a job that one of its checkpoints is kept or has failed, and plans the next. newest is the newest
// that is kept; often as in planCheckpoint.
func CheckpointOver(j fleet.Job, c fleet.Checkpoint, newest fleet.CheckpointID, often time.Duration, at time.Time) fleet.Job {
	j.Newest = newest
	if j.Incarnation != c.Incarnation {
		return j
	}
	switch next := j.NextCheckpoint; {
	case c.Phase == fleet.Kept:
		j = planCheckpoint(j, at, often)
	case c.Phase.Open(), next.IsZero():
	case next.Sub(at) > mendPause: // soon again
		j.NextCheckpoint = at.Add(mendPause)
	}
	return j
}

// CheckpointBegun notes when the next checkpoint is due after one that has begun.
func CheckpointBegun(j fleet.Job, often time.Duration, at time.Time) fleet.Job {
	return planCheckpoint(j, at, often)
}

// SetBack has a job wait from now on for what it waits for since a time that has not come: the clock was set back, or another
// controller's is behind. longest is the longest interval of checkpoints where the plan names none. The second result is false
// if nothing changed.
func SetBack(j fleet.Job, longest time.Duration, at time.Time) (_ fleet.Job, changed bool) {
	if j.Exited.After(at) {
		j.Exited, changed = at, true
	}
	if j.Ending != nil && j.Ending.At.After(at) {
		end := *j.Ending // snapshots share the old one
		end.At = at
		j.Ending, changed = &end, true
	}
	if plan := j.Spec.Checkpoint; plan != nil && j.NextCheckpoint.After(at.Add(max(cmp.Or(plan.Every, longest), FirstCheckpoint))) {
		j, changed = planCheckpoint(j, at, FirstCheckpoint), true
	}
	return j, changed
}

// bereft decides whether a job that fails because it has lost guests begins again. before is the
// job when it lost them.
func bereft(j, before fleet.Job, guests []fleet.Guest) fleet.Job {
	var hosts []fleet.HostID
	killed := false
	for _, g := range guests {
		switch {
		case !g.State.Ended():
		case !g.HostFault && g.From != "" && before.State == fleet.JobStarting: // an older checkpoint may do
		case !g.HostFault:
			return j // it would end again; or, after a backup was restored, nobody knows how it ended
		default:
			hosts = append(hosts, g.Home)
			killed = killed || g.Remains != nil && g.Remains.Killed
		}
	}
	// Not to be tried again. What is killed may be so because it cannot go on from there: it has a second try.
	if before.State == fleet.JobStarting && before.From != "" && (len(hosts) == 0 || killed && j.Elsewhere > 0) {
		j.Unrestorable = append(slices.Clip(j.Unrestorable), before.From)
	}
	if before.State == fleet.JobStarting && j.Ending == nil && j.Elsewhere < startsElsewhere {
		j.Requeue = true
		j.Elsewhere++
		j.Avoid = slices.Concat(j.Avoid, hosts)
		slices.Sort(j.Avoid)
		j.Avoid = slices.Compact(j.Avoid)
		return j
	}
	return restart(j)
}

// restart lets a job that fails by no fault of its program begin again, if it may once more.
func restart(j fleet.Job) fleet.Job {
	if j.Ending == nil && j.Restarted < j.Spec.Restarts {
		j.Requeue = true
		j.Restarted++
	}
	return j
}

// hostFault reports whether a guest ends because of its host. A guest that reached a limit of its
// own, or that its host could not start for another reason, would end elsewhere, too.
func hostFault(g fleet.Guest, r fleet.Report) bool {
	switch {
	case r.AtFault:
		return true
	case g.State == fleet.GuestStarting, g.State == fleet.GuestRestoring, g.State == fleet.GuestResuming:
		return r.Outcome == fleet.Unknown
	case g.State == fleet.GuestRunning:
		return r.Remains == nil || len(r.Remains.Limits()) == 0
	}
	return false
}
