package controller

import (
	"pagurus/fleet"
)

// committed updates the spool after a change.
func (c *Controller) committed(change fleet.Changeset) {
	if before := c.current.Load(); before != nil { // it is published after each change
		c.meter.count(*before, change)
	}
	for _, j := range change.Jobs {
		c.spool.know(j.ID, j.Spec.UID, 0)
		if j.State == fleet.JobEnded {
			c.spool.finish(j.ID)
			if c.accounts.book != nil {
				c.accounts.book.NoteEnd(j)
			}
		} else if err := c.spool.followIncarnation(j); err != nil {
			c.Log.Warn("output of a job that begins again is not taken until the controller is started again", "cause", err)
		}
	}
	c.noteCuts(change.Checkpoints)
	c.dismiss(change.GoneHosts)
	for _, id := range change.GoneJobs {
		if err := c.spool.forget(id); err != nil {
			c.Log.Warn("a forgotten job's output is left behind", "cause", err)
		}
	}
}

// noteCuts notes how much output jobs have at checkpoints that are cut, before their guests are told to run on.
func (c *Controller) noteCuts(all []fleet.Checkpoint) {
	if err := c.spool.followCheckpoints(all); err != nil {
		c.Log.Warn("a job that goes on from a checkpoint may write some of its output twice", "cause", err)
	}
}
