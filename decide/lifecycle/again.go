package lifecycle

import (
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
	j.Requeue, j.Ending, j.Exit, j.Result, j.Cause = false, nil, nil, "", ""
	j.LostWith = ""
	j.Started, j.ShareHost, j.Subnet = time.Time{}, "", 0
	return j
}

// BeginJob lets a waiting job start on a network and with a host for its files.
func BeginJob(j fleet.Job, net fleet.Subnet, share fleet.HostID, at time.Time) fleet.Job {
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

// over is a job whose last guest is gone: it has ended, or waits to begin again from its
// beginning. Who builds another place to begin from decides it here.
func over(j fleet.Job, at time.Time) fleet.Job {
	if !j.Requeue {
		j.State, j.Since, j.Ended = fleet.JobEnded, at, at
		return j
	}
	j.Incarnation++
	return Enqueue(j, j.Cause, at)
}

// bereft decides whether a job that fails because it has lost guests begins again. before is the
// job when it lost them.
func bereft(j, before fleet.Job, guests []fleet.Guest) fleet.Job {
	var hosts []fleet.HostID
	for _, g := range guests {
		switch {
		case !g.State.Ended():
		case !g.HostFault:
			return j // it would end again; or, after a backup was restored, nobody knows how it ended
		default:
			hosts = append(hosts, g.Home)
		}
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
	case g.State == fleet.GuestStarting:
		return r.Outcome == fleet.Unknown
	case g.State == fleet.GuestRunning:
		return r.Remains == nil || len(r.Remains.Limits()) == 0
	}
	return false
}
