// This file remembers where the parts of a host's guests are, so that no two guests get the
// same cores, pages or memory. Package topology decides where they go.
//
// It must not know how guests are run. Its tests plan guests on a recorded machine.

package agent

import (
	"maps"
	"sync"

	"pagurus/decide/topology"
	"pagurus/fleet"
)

// Layouts are the guests' layouts on one host. The zero value is empty.
type Layouts struct {
	mu sync.Mutex
	by map[fleet.GuestID]*fleet.Layout
}

// Plan gives a task with the guest's layout; a guest without a shape has none. A guest that
// was planned before, or that found contains, stays where it is.
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
			all[g] = layout // the layout in effect, or one from before this agent's start
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

// Forget removes a guest's layout.
func (l *Layouts) Forget(id fleet.GuestID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.by, id)
}
