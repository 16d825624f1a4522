// Package notice says what of a cluster's state others are to be told, and how long to try. What it says follows
// from the state alone, so a controller that takes over tells what its predecessor did not.
//
// It must not know how anybody is told. It is pure; its tests give it snapshots.
package notice

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"pagurus/fleet"
)

const (
	// A move is stalled when it takes this much longer than the longest that was expected, and at least so long.
	stalledTimes = 3
	stalledLeast = 10 * time.Minute
	// Of a cause so many bytes are told.
	mostCause = 500
)

// Of gives what has happened since a time, oldest first, of some kinds. Name is the cluster's.
func Of(s fleet.Snapshot, since time.Time, kinds []string, name string) (out []fleet.Notice) {
	wants := func(k fleet.NoticeKind) bool { return slices.Contains(kinds, string(k)) }
	if wants(fleet.JobEndedNotice) {
		for _, j := range s.Jobs {
			if j.State == fleet.JobEnded && !j.Requeue && j.Ended.After(since) {
				out = append(out, jobEnded(s, j))
			}
		}
	}
	if wants(fleet.HostLostNotice) {
		for _, h := range s.Hosts {
			if n := len(h.Losses); n > 0 && h.Losses[n-1].After(since) {
				out = append(out, hostLost(h))
			}
		}
	}
	if wants(fleet.MoveStalledNotice) {
		for _, m := range s.Moves {
			if at := stalledAt(s, m); m.Ended.IsZero() && !at.After(s.At) && at.After(since) {
				out = append(out, moveStalled(s, m, at))
			}
		}
	}
	for i := range out {
		out[i].Cluster = name
	}
	slices.SortFunc(out, func(a, b fleet.Notice) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.ID, b.ID)) })
	return out
}

// id names what happened: what kind, to whom, and when that began, since numbers may be given again.
func id(k fleet.NoticeKind, subject string, began int64) fleet.NoticeID {
	return fleet.NoticeID(string(k) + "/" + subject + "/" + strconv.FormatInt(began, 36))
}

func jobEnded(s fleet.Snapshot, j fleet.Job) fleet.Notice {
	uid, user := j.Spec.UID, fleet.UserID("")
	for _, name := range slices.Sorted(maps.Keys(s.Users)) {
		if s.Users[name].UID == uid {
			user = name
			break
		}
	}
	cause := fleet.WithoutConsole(j.Cause) // what a program said is its user's
	if len(cause) > mostCause {
		cause = cause[:mostCause]
	}
	text := fmt.Sprintf("job %s of %s was %s", j.ID, cmp.Or(string(user), "uid "+fmt.Sprint(uid)), j.Result)
	switch {
	case j.Result == fleet.JobFinished && j.Exit != nil && j.Exit.Signal != "":
		text = fmt.Sprintf("job %s of %s ended by %s", j.ID, cmp.Or(string(user), "uid "+fmt.Sprint(uid)), j.Exit.Signal)
	case j.Result == fleet.JobFinished && j.Exit != nil:
		text = fmt.Sprintf("job %s of %s ended with exit code %d", j.ID, cmp.Or(string(user), "uid "+fmt.Sprint(uid)), j.Exit.Code)
	case j.Result == fleet.JobFailed:
		text = fmt.Sprintf("job %s of %s failed: %s", j.ID, cmp.Or(string(user), "uid "+fmt.Sprint(uid)), cmp.Or(cause, "nobody knows why"))
	}
	return fleet.Notice{
		ID: id(fleet.JobEndedNotice, string(j.ID), j.Ended.UnixNano()), Kind: fleet.JobEndedNotice, At: j.Ended, Text: text,
		Job: j.ID, UID: &uid, User: user, Result: j.Result, Exit: j.Exit, Cause: cause, Host: j.LostWith,
	}
}

func hostLost(h fleet.Host) fleet.Notice {
	at := h.Losses[len(h.Losses)-1]
	return fleet.Notice{
		ID: id(fleet.HostLostNotice, string(h.ID), at.UnixNano()), Kind: fleet.HostLostNotice, At: at, Host: h.ID,
		Text: fmt.Sprintf("host %s is gone: it was not heard for longer than its lease, and nothing runs there any more", h.ID),
	}
}

// stalledAt is when a move counts as stalled, unless it ends before.
func stalledAt(s fleet.Snapshot, m fleet.Move) time.Time {
	limit := stalledLeast
	for _, id := range m.Migrations {
		if p := s.Migrations[id].Predicted; p != nil && p.Total.High < 1<<61 {
			limit = max(limit, stalledTimes*p.Total.High)
		}
	}
	return m.Begun.Add(limit)
}

func moveStalled(s fleet.Snapshot, m fleet.Move, at time.Time) fleet.Notice {
	n := fleet.Notice{ID: id(fleet.MoveStalledNotice, string(m.ID), m.Begun.UnixNano()), Kind: fleet.MoveStalledNotice, At: at, Move: m.ID}
	where := ""
	for _, id := range m.Migrations {
		v := s.Migrations[id]
		if n.Job = v.Job; !v.Phase.Ended() {
			where = fmt.Sprintf(", in phase %s of guest %s from %s to %s", v.Phase, v.Guest, v.From, v.To)
			break
		}
	}
	n.Text = fmt.Sprintf("move %s has been under way since %s, much longer than expected%s: `pagurus move show %s` says how far it is", m.ID, m.Begun.UTC().Format(time.RFC3339), where, m.ID)
	return n
}

// Trying to tell.
const (
	FirstWait = time.Second
	LastWait  = 5 * time.Minute
	// GiveUp is how long a notice is tried.
	GiveUp = 24 * time.Hour
	// MostWaiting is how many notices wait for one receiver; of more the oldest are given up.
	MostWaiting = 1000
	// MostRefused is how often a receiver may say that it does not want a notice.
	MostRefused = 5
	// settled is how long after something happened it is surely in the state.
	settled = time.Minute
)

// Wait is how long to wait after a number of failures.
func Wait(failures int) time.Duration {
	if failures > 16 {
		return LastWait
	}
	return min(LastWait, FirstWait<<max(0, failures-1))
}

// Later is a mark after some more was told or given up, and others wait. It stays short.
func Later(m fleet.NoticeMark, over []fleet.Notice, waiting []fleet.Notice, at time.Time) fleet.NoticeMark {
	through := at.Add(-settled)
	for _, n := range waiting {
		if before := n.At.Add(-1); before.Before(through) {
			through = before
		}
	}
	if through.Before(m.Through) {
		through = m.Through
	}
	told := []fleet.NoticeID{}
	for _, n := range over {
		if n.At.After(through) && !slices.Contains(told, n.ID) {
			told = append(told, n.ID)
		}
	}
	slices.Sort(told)
	return fleet.NoticeMark{Receiver: m.Receiver, Through: through, Told: told}
}
