package state

import (
	"time"

	"pagurus/fleet"
)

func (l *Index) commitCheckpoints(c fleet.Changeset) {
	if len(c.Checkpoints)+len(c.GoneCheckpoints) > 0 {
		l.snap.Checkpoints = own(l.snap.Checkpoints, &l.shared.checkpoints)
		apply(l.snap.Checkpoints, c.Checkpoints, c.GoneCheckpoints, func(c fleet.Checkpoint) fleet.CheckpointID { return c.ID }, l.checkpoint)
	}
}

func (l *Index) checkpoint(c fleet.Checkpoint, by int) {
	list(l.checkpoints, c.Job, c.ID, by)
	set(l.working, c.ID, by > 0 && c.Phase.Open())
}

// CheckpointsOf returns a job's checkpoints, unordered.
func (l *Index) CheckpointsOf(id fleet.JobID) []fleet.CheckpointID { return l.checkpoints[id] }

// Working returns the checkpoints that are due, or that hosts or vaults work on, sorted by ID.
func (l *Index) Working() []fleet.CheckpointID { return names(l.working) }

// Planned returns the running jobs whose plan has a checkpoint made by now.
func (l *Index) Planned(at time.Time) (out []fleet.JobID) {
	for _, j := range l.planned {
		if j.at.After(at) {
			break
		}
		out = append(out, j.id)
	}
	return out
}
