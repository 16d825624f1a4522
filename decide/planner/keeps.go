// This file keeps users' checkpoints within what they may take of all vaults.
//
// It must not know what counts how much, which package quota does. Its tests are scenarios.

package planner

import (
	"cmp"

	"pagurus/decide/lifecycle"
	"pagurus/decide/quota"
	"pagurus/fleet"
)

// overQuota says why a user may not have a checkpoint of a job that takes so many bytes or more; empty: the user may. What goes once it is
// kept does not count.
func (d *draft) overQuota(j fleet.Job, c fleet.Checkpoint, more int64) string {
	l := d.p.Keeps
	if l == (fleet.CheckpointLimits{}) {
		return ""
	}
	all := map[fleet.JobID][]fleet.Checkpoint{}
	for id := range d.base.Checkpoints {
		if is, there := d.Checkpoints.Find(id); there {
			all[is.Job] = append(all[is.Job], is)
		}
	}
	all[j.ID] = d.checkpointsOf(j.ID)
	without := map[fleet.CheckpointID]bool{c.ID: true}
	for _, old := range lifecycle.RetainedWith(c, all[j.ID], keeps(j)) {
		without[old.ID] = true
	}
	use := quota.UseOf(all, func(id fleet.JobID) (uint32, bool) {
		is, known := d.Jobs.Find(id)
		return is.Spec.UID, known
	}, without)
	return quota.RefusedCheckpoint(l, use, j.Spec.UID, more)
}

// keeps is how many checkpoints of a job are kept that nobody asked for.
func keeps(j fleet.Job) int {
	if plan := j.Spec.Checkpoint; plan != nil {
		return cmp.Or(plan.Keep, fleet.UsualKeep)
	}
	return fleet.UsualKeep
}

// savedTooMuch handles a report that a guest's state is in its vault, where with it the user has too much: the checkpoint is given up
// then. Nobody knows before how much of a guest's memory is in use.
func (d *draft) savedTooMuch(c fleet.Checkpoint, r fleet.Report) (fleet.Checkpoint, bool) {
	j, known := d.Jobs.Find(c.Job)
	if c.Phase != fleet.Saving || r.Outcome != fleet.Done || r.Kept == nil || !known || r.Kept.Refused() != "" {
		return c, false
	}
	more := r.Kept.Bytes
	for _, p := range c.Guests {
		if p.Guest != r.Order.Guest {
			more += p.Bytes
		}
	}
	reason := d.overQuota(j, c, more)
	if reason == "" {
		return c, false
	}
	return lifecycle.RemoveCheckpoint(c, reason, d.at)
}
