// This file remembers where the parts of a host's guests are, so that no
// two are given the same cores, pages or memory. Where they go is decided by package
// topology.
//
// It must not know how guests are run. Its tests plan guests on a recorded
// machine.

package agent

import (
	"maps"
	"sync"

	"pagurus/decide/topology"
	"pagurus/fleet"
)

// Layouts are those of one host. The zero value has none.
type Layouts struct {
	mu sync.Mutex
	by map[fleet.GuestID]*fleet.Layout
}

// Plan gives a task with where the guest's parts are to be; a guest without a
// shape has none. One that was planned before, or that found says is here, stays
// where it is.
func (l *Layouts) Plan(t fleet.Task, host *fleet.Topology, found map[fleet.GuestID]*fleet.Layout) fleet.Task {
	id := t.Guest.ID
	if t.Guest.Shape == nil || host == nil {
		return t
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	all := maps.Clone(l.by)
	if all == nil {
		all = map[fleet.GuestID]*fleet.Layout{}
	}
	for g, layout := range found {
		if layout != nil {
			all[g] = layout // what became of the plan, or of before this agent was started
		}
	}
	if all[id] == nil {
		var taken topology.Taken
		for _, other := range all {
			taken.Add(*other)
		}
		layout := topology.Fit(*host, *t.Guest.Shape, t.Guest.Need, t.Job.Spec.Tune, taken)
		if l.by == nil {
			l.by = map[fleet.GuestID]*fleet.Layout{}
		}
		l.by[id], all[id] = &layout, &layout
	}
	t.Layout = all[id]
	return t
}

// Forget says that a guest is no longer here.
func (l *Layouts) Forget(id fleet.GuestID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.by, id)
}
