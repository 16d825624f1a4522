package controller

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// grantAfter is how long a controller that was suspended grants no lease. Another may lead since,
// and does not know of it; within this time the store says so.
const grantAfter = 5 * time.Second

// renewLease answers what a host says of its lease. What it may have from now on is on record
// first: a controller that leads after this one waits as long. Without an answer the host asks
// again a second later.
func (c *Controller) renewLease(ctx context.Context, id fleet.HostID, l fleet.Lease) {
	if longest := fleet.LongerLease(l.Length, l.Held); c.snap().Hosts[id].Lease != longest {
		if _, err := c.step(ctx, fleet.Observation{At: now(), Leased: id, Lease: longest}); err != nil {
			c.noteStoreError(err)
			return
		}
	}
	if l.Asked == 0 || bootTime()-c.wentOnAt < grantAfter && c.wentOnAt > 0 || c.hosts[id] == nil {
		return
	}
	c.sendToHost(id, wire.Down{Lease: &fleet.Lease{Length: l.Length, Asked: l.Asked}})
}

// bootTime is the time since the machine's start, also that for which it was suspended. Nobody can
// set it.
func bootTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err) // Linux has had it since 2.6.39
	}
	return time.Duration(t.Nano())
}

// born completes an order that an agent repeats which is too old to know when jobs were born.
func (c *Controller) born(o fleet.Order) fleet.Order {
	if o.Born == 0 {
		o.Born = c.snap().Jobs[o.Job].Born
	}
	return o
}
