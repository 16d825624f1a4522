package controller

import (
	"fmt"
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

func tooMuch(after time.Duration, why string) error {
	return wire.AskAgain(after, fmt.Sprintf("%s; ask again in %s", why, fleet.ShortDuration(max(after.Round(time.Second), time.Second))))
}
