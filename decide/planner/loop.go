// This file is the body of the loop around planner.Step: take an event,
// think, commit, tell. The live controller and the simulator differ only in
// whose hands carry it out.
//
// It must not know stores, connections or clocks, and holds no decision of its
// own. Its tests are those of the two that use it.

package planner

import (
	"time"

	"pagurus/decide/state"
	"pagurus/fleet"
)

// Hands carry out what was decided.
type Hands interface {
	// Commit makes a change to revision from, whole or not at all, and says the
	// new revision. After an error the loop goes on as if it had not been made.
	Commit(from int64, c fleet.Changeset) (int64, error)
	// Committed does what follows from a change outside of the snapshot.
	Committed(c fleet.Changeset)
	// Send tells hosts what to do. They may not be there: what is pending is sent
	// again when they come.
	Send([]fleet.Order)
}

// Loop is a cluster's brain with its memory.
type Loop struct {
	Planner *Planner
	Index   *state.Index
}

// NewLoop makes the loop of a cluster as it is stored.
func NewLoop(p *Planner, s fleet.Snapshot) *Loop {
	return &Loop{Planner: p, Index: state.NewIndex(s, p.Policy)}
}

// HandleEvent is one event: think, commit, tell. Nothing is told that was not
// committed, and after an error nothing has changed: it is the planner's, as it
// is, or that of Commit.
func (l *Loop) HandleEvent(ev fleet.Event, at time.Time, h Hands) (fleet.Answer, error) {
	l.Index.At(at)
	d, err := l.Planner.StepOn(l.Index, ev)
	if err != nil {
		return fleet.Answer{}, err
	}
	if !d.Change.Empty() {
		revision, err := h.Commit(l.Index.Snapshot().Revision, d.Change)
		if err != nil {
			return fleet.Answer{}, err
		}
		l.Index.Commit(d.Change, revision)
		h.Committed(d.Change)
	}
	h.Send(d.Orders)
	return d.Answer, nil
}
