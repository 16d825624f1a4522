// This file takes back a checkpoint that a user has a copy of: vaults are chosen, and it is kept once all parts have come to
// them.
//
// It must not know how they come, or whether the copy is the cluster's own, which the controller has tested. Its tests are
// scenarios.

package planner

import (
	"fmt"
	"slices"

	"pagurus/decide/lifecycle"
	"pagurus/fleet"
)

// takeCheckpoint makes a checkpoint of a copy that comes back. The job runs on, waits or has ended as before.
func (d *draft) takeCheckpoint(r fleet.Request) (fleet.Answer, error) {
	j, ok := d.Jobs.Find(r.Job)
	switch {
	case !ok:
		return refuse(r, "there is no job %s any more, and a copy of a checkpoint goes on as the job that it is of; `pagurus job ls` lists jobs", orNone(r.Job))
	case r.Taken == nil:
		return refuse(r, "the request has no copy of a checkpoint")
	case r.Taken.Checkpoint.Job != j.ID || r.Taken.UID != j.Spec.UID:
		return refuse(r, "the copy is of job %s of uid %d, and not of %s; name that job", r.Taken.Checkpoint.Job, r.Taken.UID, j.ID)
	case r.Taken.Checkpoint.Born != j.Born:
		return refuse(r, "the copy is of an earlier job that was called %s", j.ID)
	case len(r.Taken.Checkpoint.Guests) < j.Spec.Guests || len(r.Taken.Checkpoint.Guests) > j.Spec.MostGuests():
		return refuse(r, "the copy has %d guests, and job %s has %d", len(r.Taken.Checkpoint.Guests), j.ID, j.Spec.Guests)
	}
	if _, can := lifecycle.Restart(j, r.Taken.Checkpoint.ID, false, d.at); !can {
		return refuse(r, "job %s is %s and cannot begin again now; `pagurus explain %s` says why", j.ID, stateWord(j), j.ID)
	}
	for _, c := range d.checkpointsOf(j.ID) {
		switch {
		case c.Phase != fleet.Taking:
		case r.ID != "" && c.Request == r.ID:
			return fleet.Answer{Job: j.ID, Checkpoint: c.ID}, nil
		default:
			if next, changed := lifecycle.RemoveCheckpoint(c, "another copy is given back", d.at); changed {
				d.recordCheckpoint(next)
			}
		}
	}
	more, _ := r.Taken.Checkpoint.Bytes()
	if reason := d.overQuota(j, fleet.Checkpoint{Job: j.ID}, more); reason != "" {
		return refuse(r, "%s", reason)
	}
	vaults, reason := d.vaultsFor(j, r.Taken.Checkpoint)
	if reason != "" {
		return refuse(r, "%s", reason)
	}
	j, c := lifecycle.TakeCheckpoint(d.Jobs.At(j.ID), *r.Taken, vaults, d.at)
	c.Request, c.Asks = r.ID, r.Asks
	d.Jobs.Put(j.ID, j)
	d.Checkpoints.Put(c.ID, c)
	return fleet.Answer{Job: j.ID, Checkpoint: c.ID}, nil
}

// vaultsFor chooses a vault for each part of a copy that comes back: those with most room, better not on hosts that are to be
// left.
func (d *draft) vaultsFor(j fleet.Job, c fleet.Checkpoint) (out []fleet.HostID, reason string) {
	room := d.vaultRoom(j, fleet.Checkpoint{Job: j.ID})
	for _, p := range c.Guests {
		best, rank := fleet.HostID(""), vaultRank{}
		for _, id := range room.hosts {
			h := d.Hosts.At(id)
			is := vaultRank{own: h.Facts.Vault.Listen == "", leaves: h.State != fleet.HostUp || h.ForOwner || h.ForHealth, free: room.more(id)}
			if is.free >= p.Bytes && (best == "" || is.compare(rank) < 0) {
				best, rank = id, is
			}
		}
		if best == "" {
			return nil, fmt.Sprintf("no host that is heard has a vault with %d MiB free for guest %s of %s, and as much left of what its user may have there; `pagurus host ls` shows hosts", p.Bytes>>20, p.Guest, j.ID)
		}
		room.put(best, p.Bytes)
		out = append(out, best)
	}
	return slices.Clip(out), ""
}

// beingMade reports whether another checkpoint of the job has to wait for one.
func beingMade(c fleet.Checkpoint) bool {
	return c.Phase.Open() && c.Phase != fleet.Dropping && c.Phase != fleet.Taking
}
