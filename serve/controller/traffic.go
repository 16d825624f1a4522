package controller

import (
	"context"
	"time"

	"pagurus/decide/placement"
	"pagurus/fleet"
)

const (
	// trafficAfter is how long a program has run when its ranks are first asked to whom
	// they talk; they are asked again whenever that has doubled, since what they said
	// is of all the time.
	trafficAfter       = time.Minute
	mostTrafficQueries = 2 // jobs asked at the same time: it takes the guests' time
)

// trafficQueries is which jobs' ranks are being asked to whom they talk.
type trafficQueries struct {
	asked map[fleet.JobID]time.Duration // for how long the program had run
	under int                           // way
}

// due reports whether a job is to be asked.
func (t *trafficQueries) due(j fleet.Job, at time.Time) bool {
	ran := at.Sub(j.Started)
	return j.State == fleet.JobRunning && j.Spec.Trace && j.Spec.Guests > 1 && !j.Started.IsZero() &&
		t.under < mostTrafficQueries && ran >= max(trafficAfter, 2*t.asked[j.ID])
}

// measureTraffic asks the ranks of jobs to whom they talk, where that matters to where
// their guests go. It is for the loop and does not wait.
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

// askTraffic asks one job's ranks and records what they say. That nobody answered is no
// error: they are asked again.
func (c *Controller) askTraffic(ctx context.Context, s fleet.Snapshot, j fleet.Job) {
	traces, err := c.askTraces(ctx, s, j.ID, fleet.TraceQuery{})
	if err != nil {
		c.Log.Debug("traffic not known for all ranks", "job", j.ID, "cause", err)
	}
	talk := placement.Traffic(j, traces)
	// When the loop has ended nobody needs it.
	_ = c.do(ctx, func(ctx context.Context) {
		if c.trafficQueries.under--; len(talk) == 0 || err != nil && len(c.snap().Jobs[j.ID].Traffic) > 0 {
			return // what is known is more than a part
		}
		_, err := c.step(ctx, fleet.Observation{At: now(), Job: j.ID, Traffic: talk})
		c.noteStoreError(err)
	})
}
