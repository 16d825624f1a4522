package quota

import (
	"fmt"

	"pagurus/fleet"
)

// What a request puts into the store, beside what describes jobs.
const (
	changeBytes = 4 << 10 // of records that change with it, until what it began is over
	guestBytes  = 4 << 10 // of each guest that it names: its record, and those of its moves
)

// Change is how many bytes a request puts into the store, with what follows from it. What describes a job is written once: it is apart from
// what changes.
func Change(r fleet.Request) (n int64) {
	n = changeBytes + guestBytes*int64(len(r.Guests))
	if r.Spec != nil {
		n += Weight(*r.Spec)
	}
	if r.Copy != nil {
		n += int64(len(r.Copy.Text))
	}
	return n
}

// Eighth is what is left of what all users may put into the store in a minute to those who have used less than half of their own part.
func Eighth(l fleet.ChangeLimits) int64 { return l.StoredAll / lastPart }

// ManyRequests says that a user has asked for too much in a minute.
func ManyRequests(l fleet.ChangeLimits) string {
	return fmt.Sprintf("you have asked for more changes than the %d that each user may ask for in a minute", l.Requests)
}

// MuchStored says that a user has put too much into the store in a minute, or that all users have.
func MuchStored(l fleet.ChangeLimits, own bool) string {
	const then = "; give jobs less by arguments and environment and more by files"
	if own {
		return fmt.Sprintf("your requests put more into the controller's store than the %d MiB that each user may in a minute"+then, l.Stored>>20)
	}
	return fmt.Sprintf("what is left of the %d MiB that all users may put into the controller's store in a minute is for those who have put in less than you"+then, l.StoredAll>>20)
}
