package desired

import (
	"cmp"
	"slices"

	"pagurus/fleet"
)

// clones says which clones of jobs' files are needed, to a host of each machine that has files. A job of which nothing is known any
// more is not among them, and its clones would stay; so jobs that have ended are, for as long as their guests are remembered.
func clones(s fleet.Snapshot) map[fleet.HostID][]fleet.JobClones {
	some := false
	for _, j := range s.Jobs {
		some = some || j.Checkpoints > 0
	}
	if !some {
		return nil
	}
	on := map[string]fleet.HostID{} // by machine
	for id, h := range s.Hosts {
		if is, known := on[h.Facts.Machine]; h.Facts.Machine != "" && (!known || id < is) {
			on[h.Facts.Machine] = id
		}
	}
	kept := map[fleet.JobID][]fleet.CheckpointID{}
	for _, c := range s.Checkpoints {
		if c.Phase == fleet.Kept || c.Phase.Traits().Forward {
			kept[c.Job] = append(kept[c.Job], c.ID)
		}
	}
	out := map[fleet.HostID][]fleet.JobClones{}
	for _, j := range s.Jobs {
		host := on[j.Spec.Machine]
		if is := s.Hosts[j.ShareHost]; j.ShareHost != "" && is.Facts.Machine == j.Spec.Machine {
			host = j.ShareHost
		}
		if _, remembered := s.Guests[GuestID(j.ID, 0)]; host == "" || j.Checkpoints == 0 || j.Spec.Export == "" || j.State == fleet.JobEnded && !remembered {
			continue
		}
		slices.Sort(kept[j.ID])
		out[host] = append(out[host], fleet.JobClones{
			Job: j.ID, Born: j.Born, Groups: j.Spec.Groups, Last: j.Checkpoints, Keep: kept[j.ID],
			Share: fleet.Share{Export: j.Spec.Export, UID: j.Spec.UID, GID: j.Spec.GID, Files: j.Spec.Files},
		})
	}
	for _, of := range out {
		slices.SortFunc(of, func(a, b fleet.JobClones) int { return cmp.Compare(a.Job, b.Job) })
	}
	return out
}
