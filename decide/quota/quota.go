// Package quota decides who may keep how much output on the controller's disk, and which
// ended jobs' output goes first. It is pure: it gets numbers and does not know where they
// are from. Its tests are tables, and a property: whatever users write, one that has less
// than an even share is not kept waiting by those who have more.
package quota

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"pagurus/fleet"
)

// Kept is what is kept when a user wants to add to it.
type Kept struct {
	Mine  int64 // bytes of this user
	All   int64 // bytes of all users
	Users int   // that have any
	Free  int64 // bytes of the disk that are neither used nor reserved
}

// Bound is what keeps a user from adding more.
type Bound int

// The bounds.
const (
	None  Bound = iota
	Each        // the user's own limit
	All         // the limit of all users
	Share       // what is left is for users who have less than an even share
	Disk        // the disk is full, but for what is reserved
)

// lastPart is the part of the whole that is left to users who have less than an even share.
const lastPart = 8

// Check says what keeps a user from adding some bytes. One user cannot take all that is
// there: the last eighth of it is for those who have less than an even share, where one
// user more is counted than there are, because another may come.
func Check(l fleet.OutputLimits, k Kept, more int64) Bound {
	left, bound := k.Free, Disk
	if l.All > 0 && l.All-k.All < left {
		left, bound = l.All-k.All, All
	}
	whole := k.All + max(left, 0)
	users := k.Users + 1
	if k.Mine == 0 {
		users++ // this one comes now
	}
	switch {
	case l.Each > 0 && k.Mine+more > l.Each:
		return Each
	case more > left:
		return bound
	case left-more < whole/lastPart && k.Mine+more > whole/int64(users):
		return Share
	}
	return None
}

// Says says what keeps a user's programs waiting, and what to do; size writes bytes for
// people.
func (b Bound) Says(l fleet.OutputLimits, uid uint32, size func(int64) string) string {
	const remove = "remove output of ended jobs with `pagurus job rm`; `pagurus quota` shows how much each has"
	switch b {
	case Each:
		return fmt.Sprintf("the output of uid %d has reached the %s that each user may have: %s", uid, size(l.Each), remove)
	case All:
		return fmt.Sprintf("all jobs' output has reached the %s that it may take: %s", size(l.All), remove)
	case Share:
		return fmt.Sprintf("what is left for output is for users who have less of it than uid %d: %s", uid, remove)
	case Disk:
		return "the controller's disk is full, but for what is kept free for the controller itself: free some space there, or " + remove
	}
	return ""
}

// Ended is the output of a job that has ended.
type Ended struct {
	Job   fleet.JobID
	At    time.Time // its end
	Bytes int64
}

// LeastAge is how long an ended job stays whoever needs its room: its user may not have read the output yet.
const LeastAge = 10 * time.Minute

// MakeRoom chooses, of one user's ended jobs, the oldest ones whose removal lets the user add some bytes. None is chosen if
// there is room already, if even all of them would not do, or on a full disk: there a user who has much waits for the share of others
// before, so that others have filled it.
func MakeRoom(l fleet.OutputLimits, k Kept, needed int64, jobs []Ended) (out []fleet.JobID) {
	jobs = slices.Clone(jobs)
	slices.SortFunc(jobs, func(a, b Ended) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Job, b.Job)) })
	for {
		switch Check(l, k, needed) {
		case None:
			return out
		case Disk:
			return nil
		}
		for len(jobs) > 0 && jobs[0].Bytes <= 0 {
			jobs = jobs[1:]
		}
		if len(jobs) == 0 {
			return nil
		}
		j := jobs[0]
		k.Mine, k.All, k.Free = k.Mine-j.Bytes, k.All-j.Bytes, k.Free+j.Bytes
		out, jobs = append(out, j.Job), jobs[1:]
	}
}
