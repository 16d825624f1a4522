// This file is the loop around planner.Step: take an event, decide, commit, send. The
// live controller and the simulator differ only in their Hands.
//
// It must not know stores, connections or clocks, and decides nothing. The tests of its
// two users cover it.

package planner

import (
	"time"

	"pagurus/decide/state"
	"pagurus/fleet"
)

// Hands carry out a decision.
type Hands interface {
	// Commit applies a change to revision from, whole or not at all, and returns the new
	// revision. After an error the loop continues as if the change had not been made.
	Commit(from int64, c fleet.Changeset) (int64, error)
	// Committed handles the effects of a change outside of the snapshot.
	Committed(c fleet.Changeset)
	// Send sends orders to hosts. Hosts may be disconnected: pending orders are sent
	// again when they connect.
	Send([]fleet.Order)
}

// Loop is a cluster's controller with its memory.
type Loop struct {
	Planner *Planner
	Index   *state.Index
}

// NewLoop makes the loop for a stored cluster.
func NewLoop(p *Planner, s fleet.Snapshot) *Loop {
	return &Loop{Planner: p, Index: state.NewIndex(s, p.Policy)}
}

// HandleEvent handles one event: decide, commit, send. It sends only what is committed.
// After an error, from the planner or from Commit, nothing has changed.
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
