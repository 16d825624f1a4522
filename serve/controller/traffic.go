package controller

import (
	"context"
	"time"

	"pagurus/decide/placement"
	"pagurus/fleet"
)

const (
	// trafficAfter is how long a program runs before its ranks are first asked for their
	// traffic. They are asked again whenever that time has doubled, since the answer covers
	// the whole run.
	trafficAfter       = time.Minute
	mostTrafficQueries = 2 // jobs asked at the same time: it takes the guests' time
)

// trafficQueries tracks queries for jobs' traffic.
type trafficQueries struct {
	asked map[fleet.JobID]time.Duration // how long the program had run at the last query
	under int                           // queries under way
}

// due reports whether a job should be asked.
func (t *trafficQueries) due(j fleet.Job, at time.Time) bool {
	ran := at.Sub(j.Started)
	return j.State == fleet.JobRunning && j.Spec.Trace && j.Spec.Guests > 1 && !j.Started.IsZero() &&
		t.under < mostTrafficQueries && ran >= max(trafficAfter, 2*t.asked[j.ID])
}

// measureTraffic asks jobs' ranks for their traffic, if hosts are in several sites. It runs
// in the loop and does not wait.
func (c *Controller) measureTraffic(ctx context.Context) {
	at, s := now(), c.snap()
	for id := range c.trafficQueries.asked {
		if s.Jobs[id].State != fleet.JobRunning {
			delete(c.trafficQueries.asked, id)
		}
	}
	if !sited(s) {
		return
	}
	for id, j := range s.Jobs {
		if c.trafficQueries.due(j, at) {
			c.trafficQueries.asked[id] = at.Sub(j.Started)
			c.trafficQueries.under++
			go c.askTraffic(ctx, c.whole(), j)
		}
	}
}

// sited reports whether hosts are in several sites.
func sited(s fleet.Snapshot) bool {
	first := ""
	for _, h := range s.Hosts {
		switch site := h.Facts.Site; {
		case site == "" || site == first:
		case first == "":
			first = site
		default:
			return true
		}
	}
	return false
}

// askTraffic asks one job's ranks and records the answers. Without an answer they are asked
// again later.
func (c *Controller) askTraffic(ctx context.Context, s fleet.Snapshot, j fleet.Job) {
	traces, err := c.askTraces(ctx, s, j.ID, fleet.TraceQuery{})
	if err != nil {
		c.Log.Debug("the traffic of some ranks is unknown", "job", j.ID, "cause", err)
	}
	traffic := placement.Traffic(j, traces)
	// After the loop's end this is not needed.
	_ = c.do(ctx, forItself, func(ctx context.Context) {
		if c.trafficQueries.under--; len(traffic) == 0 || err != nil && len(c.snap().Jobs[j.ID].Traffic) > 0 {
			return // the recorded traffic is more complete
		}
		_, err := c.step(ctx, fleet.Observation{At: now(), Job: j.ID, Traffic: traffic})
		c.noteStoreError(err)
	})
}
