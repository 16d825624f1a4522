// This file keeps users' checkpoints within what they may take of all vaults, and of each.
//
// It must not know what counts how much, which package quota does. Its tests are scenarios.

package planner

import (
	"cmp"
	"slices"

	"pagurus/decide/lifecycle"
	"pagurus/decide/placement"
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
	all, owner, without := d.keptBeside(j, c)
	return quota.RefusedCheckpoint(l, quota.UseOf(all, owner, without), j.Spec.UID, more)
}

// keptBeside are the checkpoints of all jobs, whose they are, and which of them do not count beside one of a job.
func (d *draft) keptBeside(j fleet.Job, c fleet.Checkpoint) (all map[fleet.JobID][]fleet.Checkpoint, owner func(fleet.JobID) (uint32, bool), without map[fleet.CheckpointID]bool) {
	all = map[fleet.JobID][]fleet.Checkpoint{}
	for id := range d.base.Checkpoints {
		if is, there := d.Checkpoints.Find(id); there {
			all[is.Job] = append(all[is.Job], is)
		}
	}
	all[j.ID] = d.checkpointsOf(j.ID)
	without = map[fleet.CheckpointID]bool{c.ID: true}
	for _, old := range lifecycle.RetainedWith(c, all[j.ID], keeps(j)) {
		without[old.ID] = true
	}
	owner = func(id fleet.JobID) (uint32, bool) {
		is, known := d.Jobs.Find(id)
		return is.Spec.UID, known
	}
	return all, owner, without
}

// vaultRoom is which hosts have a vault, and how much may be put there.
type vaultRoom struct {
	hosts []fleet.HostID         // that are heard
	free  map[fleet.HostID]int64 // bytes, of everybody
	left  map[fleet.HostID]int64 // bytes, of the job's user; absent: there is no limit
	full  string                 // why the user may have no more in one of them; empty: that is nowhere so
}

// vaultRoom finds out what the vaults have room for of a job's checkpoint.
func (d *draft) vaultRoom(j fleet.Job, c fleet.Checkpoint) vaultRoom {
	v := vaultRoom{free: map[fleet.HostID]int64{}, left: map[fleet.HostID]int64{}}
	for _, id := range d.l.AllHosts() {
		h := d.Hosts.At(id)
		if h.Facts.Vault == nil || !placement.Heard(h, d.base.At) {
			continue
		}
		v.hosts, v.free[id] = append(v.hosts, id), h.Facts.Vault.FreeBytes
		if each := h.Facts.Vault.EachBytes; each > 0 {
			v.left[id] = each
		}
	}
	if len(v.left) == 0 {
		return v
	}
	all, owner, without := d.keptBeside(j, c)
	has := quota.InVaults(all, owner, without, j.Spec.UID)
	for _, id := range v.hosts {
		if each, limited := v.left[id]; limited {
			v.left[id] = each - has[id]
			v.full = cmp.Or(v.full, quota.RefusedInVault(id, each, j.Spec.UID, has[id], 0))
		}
	}
	return v
}

// more is how much more may be put into a host's vault of the job's user.
func (v vaultRoom) more(id fleet.HostID) int64 {
	if left, limited := v.left[id]; limited {
		return min(v.free[id], left)
	}
	return v.free[id]
}

// put counts what is put into a host's vault.
func (v vaultRoom) put(id fleet.HostID, bytes int64) {
	v.free[id] -= bytes
	if _, limited := v.left[id]; limited {
		v.left[id] -= bytes
	}
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
	reason := cmp.Or(d.overQuota(j, c, more), d.overVault(j, c, r))
	if reason == "" {
		return c, false
	}
	return lifecycle.RemoveCheckpoint(c, reason, d.at)
}

// overVault says why a user has too much in a vault with the guest's state that is there now; empty: the user has not.
func (d *draft) overVault(j fleet.Job, c fleet.Checkpoint, r fleet.Report) string {
	at := slices.IndexFunc(c.Guests, func(p fleet.CheckpointPart) bool { return p.Guest == r.Order.Guest })
	if at < 0 {
		return ""
	}
	vault, more := c.Guests[at].Vault, r.Kept.Bytes
	facts := d.Hosts.At(vault).Facts.Vault
	if facts == nil || facts.EachBytes == 0 {
		return ""
	}
	for i, p := range c.Guests {
		if i != at && p.Vault == vault {
			more += p.Bytes
		}
	}
	all, owner, without := d.keptBeside(j, c)
	return quota.RefusedInVault(vault, facts.EachBytes, j.Spec.UID, quota.InVaults(all, owner, without, j.Spec.UID)[vault], more)
}

// alone reports whether a host neither reaches other hosts' vaults nor is reached: its agent has no certificate
// by which it proves who it is.
func alone(h fleet.Host) bool { return h.Facts.Vault != nil && h.Facts.Vault.Listen == "" }
