package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"pagurus/decide/quota"
	"pagurus/fleet"
	"pagurus/serve/wire"
)

// changes are what users have the controller change. A bucket holds what somebody may in a minute.
type changes struct {
	limits fleet.ChangeLimits

	mu                    sync.Mutex
	requests, stored, all *wire.Buckets // nil: no limit
}

func newChanges(l fleet.ChangeLimits) *changes {
	of := func(aMinute int64) *wire.Buckets {
		if aMinute <= 0 {
			return nil
		}
		return wire.NewBuckets(float64(aMinute)/time.Minute.Seconds(), int(aMinute))
	}
	return &changes{limits: l, requests: of(int64(l.Requests)), stored: of(l.Stored), all: of(l.StoredAll)}
}

// admit counts a request that puts so many bytes into the store. An error says why it is not made now, and then it does not count.
func (c *changes) admit(by fleet.Caller, bytes int64, at time.Time) error {
	if by.Admin && by.UID == 0 { // what root does here is the cluster's
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	who, n := fmt.Sprint(by.UID), int(bytes)
	if after := c.requests.WaitFor(who, 1, at); after > 0 {
		return tooMuch(after, quota.ManyRequests(c.limits))
	}
	if after := c.stored.WaitFor(who, n, at); after > 0 {
		return tooMuch(after, quota.MuchStored(c.limits, true))
	}
	left := 0 // to others
	if c.stored.WaitFor(who, n+int(c.limits.Stored/2), at) > 0 {
		left = int(quota.Eighth(c.limits))
	}
	if after := c.all.WaitFor("", n+left, at); after > 0 {
		return tooMuch(after, quota.MuchStored(c.limits, false))
	}
	c.requests.TakeTokens(who, 1, at)
	c.stored.TakeTokens(who, n, at)
	c.all.TakeTokens("", n, at)
	return nil
}

// made is what counts of everybody's changes.
func (c *changes) made(names map[uint32]fleet.UserID, at time.Time) fleet.ChangesMade {
	out, all := fleet.ChangesMade{Limits: c.limits, Users: []fleet.UserChanges{}}, map[string]fleet.UserChanges{}
	for who, n := range c.requests.Taken(at) {
		all[who] = fleet.UserChanges{Requests: n}
	}
	for who, n := range c.stored.Taken(at) {
		u := all[who]
		u.Bytes = int64(n)
		all[who] = u
	}
	for who, u := range all {
		if uid, err := strconv.ParseUint(who, 10, 32); err == nil {
			u.UID, u.User = uint32(uid), names[uint32(uid)]
			out.Users = append(out.Users, u)
		}
	}
	slices.SortFunc(out.Users, func(a, b fleet.UserChanges) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.UID, b.UID))
	})
	out.Bytes = int64(c.all.Taken(at)[""])
	return out
}

func tooMuch(after time.Duration, why string) error {
	return wire.AskAgain(after, fmt.Sprintf("%s; ask again in %s", why, fleet.ShortDuration(max(after.Round(time.Second), time.Second))))
}
