package quota

import (
	"fmt"
	"maps"
	"slices"

	"pagurus/fleet"
)

// A checkpoint counts with its size, as it is listed, however much of it is compressed, or shared with others: what is shared stays when
// the other goes, and then nobody could say whose it is.

// Takes is how much the checkpoints of one job count.
func Takes(all []fleet.Checkpoint) (bytes int64) {
	for _, c := range all {
		if !c.Phase.Ended() {
			size, _ := c.Bytes()
			bytes += size
		}
	}
	return bytes
}

// CheckpointUse is what the checkpoints of all users take.
type CheckpointUse struct {
	Bytes map[uint32]int64 // by user, without zeros
	Count map[uint32]int
	All   int64
}

// InVaults adds up what one user's checkpoints take of each host's vault. without are not counted.
func InVaults(all map[fleet.JobID][]fleet.Checkpoint, owner func(fleet.JobID) (uint32, bool), without map[fleet.CheckpointID]bool, uid uint32) map[fleet.HostID]int64 {
	out := map[fleet.HostID]int64{}
	for job, of := range all {
		if is, known := owner(job); !known || is != uid {
			continue
		}
		for _, c := range of {
			if c.Phase.Ended() || without[c.ID] {
				continue
			}
			for _, p := range c.Guests {
				out[p.Vault] += p.Bytes
			}
		}
	}
	return out
}

// UseOf adds up what jobs' checkpoints take. without are not counted.
func UseOf(all map[fleet.JobID][]fleet.Checkpoint, owner func(fleet.JobID) (uint32, bool), without map[fleet.CheckpointID]bool) CheckpointUse {
	u := CheckpointUse{Bytes: map[uint32]int64{}, Count: map[uint32]int{}}
	for _, job := range slices.Sorted(maps.Keys(all)) {
		uid, known := owner(job)
		if !known {
			continue
		}
		counts := slices.DeleteFunc(slices.Clone(all[job]), func(c fleet.Checkpoint) bool { return without[c.ID] })
		bytes := Takes(counts)
		if bytes == 0 {
			continue
		}
		u.All += bytes
		u.Bytes[uid] += bytes
		for _, c := range counts {
			if c.Phase == fleet.Kept {
				u.Count[uid]++
			}
		}
	}
	return u
}

// thenRemove says what a user may do who has too many checkpoints.
const thenRemove = "; `pagurus checkpoint rm` removes some, and `pagurus quota` shows how much there is"

// RefusedInVault says why a user, of whom a host's vault has so many bytes, may not have so many more there, or more; empty: the user may. each
// is what each user may have there; 0: there is no limit.
func RefusedInVault(host fleet.HostID, each int64, uid uint32, has, more int64) string {
	return refused(sharing{what: fmt.Sprintf("checkpoints in the vault of %s", host), then: " there" + thenRemove, each: each}, map[uint32]int64{uid: has}, uid, more)
}

// RefusedCheckpoint says why a user may not have one more checkpoint that takes so many bytes, or more; empty: the user may.
func RefusedCheckpoint(l fleet.CheckpointLimits, u CheckpointUse, uid uint32, more int64) string {
	return refused(sharing{what: "checkpoints", then: thenRemove, each: l.Each, all: l.All}, u.Bytes, uid, more)
}
