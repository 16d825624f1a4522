package api

import (
	"context"
	"sync"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/view"
)

// readingsMost is of how many callers the last reading is kept.
const readingsMost = 4

// readings are the last snapshots that callers read, joined and sorted, which takes a large cluster's a tenth of a second. Many pages
// ask about things of the same snapshot. Nobody changes what is here.
type readings struct {
	mu sync.Mutex
	by map[fleet.Caller]oneReading
}

type oneReading struct {
	at       time.Time
	revision int64
	cluster  view.Cluster
}

// read joins and sorts what a caller may see, if that has not just been done.
func (r *readings) read(by fleet.Caller, s fleet.Snapshot) view.Cluster {
	by = wire.Audience(by)
	r.mu.Lock()
	defer r.mu.Unlock()
	last, there := r.by[by]
	if there && last.at.Equal(s.At) && last.revision == s.Revision {
		return last.cluster
	}
	if r.by == nil || len(r.by) >= readingsMost && !there {
		r.by = map[fleet.Caller]oneReading{}
	}
	r.by[by] = oneReading{s.At, s.Revision, view.Read(s)}
	return r.by[by].cluster
}

// sharing is a caller whose readings are shared.
type sharing struct {
	*wire.Acting
	readings *readings
}

// Read reads the cluster.
func (c sharing) Read(ctx context.Context) (view.Cluster, error) {
	s, err := c.Snapshot(ctx)
	if err != nil {
		return view.Cluster{}, err
	}
	return c.readings.read(c.Caller(), s), nil
}

// read reads a cluster, by its own way if it has one.
func read(ctx context.Context, c Cluster) (view.Cluster, error) {
	if own, has := c.(sharing); has {
		return own.Read(ctx)
	}
	s, err := c.Snapshot(ctx)
	if err != nil {
		return view.Cluster{}, err
	}
	return view.Read(s), nil
}
