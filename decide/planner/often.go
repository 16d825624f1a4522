// This file says how often a job's checkpoints are made where its plan leaves that to the planner.

package planner

import (
	"maps"
	"math"
	"slices"
	"time"

	"pagurus/decide/desired"
	"pagurus/decide/health"
	"pagurus/decide/lifecycle"
	"pagurus/fleet"
)

// often is how much time passes between the checkpoints of a job by its plan. Where the plan does not say, it is what
// Young and Daly found to lose least: the root of twice what one costs times the mean time between losses.
func (d *draft) often(j fleet.Job) time.Duration {
	plan := j.Spec.Checkpoint
	if plan == nil || plan.Every > 0 {
		return orZero(plan)
	}
	costs := time.Duration(0)
	for _, c := range d.checkpointsOf(j.ID) {
		if c.WasKept {
			costs = c.Stop() + time.Duration(savingSlows*float64(max(c.Ended.Sub(c.Cut), 0)))
		}
	}
	if costs <= 0 {
		return lifecycle.FirstCheckpoint
	}
	homes := map[fleet.HostID]bool{}
	for _, id := range desired.GuestIDs(j) {
		homes[d.Guests.At(id).Home] = true
	}
	best := time.Duration(math.Sqrt(2*costs.Seconds()*d.loses(homes).Seconds()) * float64(time.Second))
	return min(max(best-costs, shortestInterval), longestInterval)
}

// loses is how much time passes between two losses of any of some hosts.
func (d *draft) loses(some map[fleet.HostID]bool) time.Duration {
	all := health.Record{}
	d.l.Room().EachHost(func(h *fleet.Host) { all = all.Plus(health.RecordOf(h, d.at)) })
	rate := 0.0
	for _, id := range slices.Sorted(maps.Keys(some)) { // sums depend on the order
		h := d.base.Hosts[id]
		rate += 1 / health.Between(health.RecordOf(&h, d.at), all).Seconds()
	}
	if rate == 0 {
		return health.Expected
	}
	return time.Duration(1 / rate * float64(time.Second))
}

func orZero(plan *fleet.CheckpointPlan) time.Duration {
	if plan == nil {
		return 0
	}
	return plan.Every
}
