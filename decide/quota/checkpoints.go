package quota

import (
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

// RefusedCheckpoint says why a user may not have one more checkpoint that takes so many bytes, or more; empty: the user may.
func RefusedCheckpoint(l fleet.CheckpointLimits, u CheckpointUse, uid uint32, more int64) string {
	const then = "; `pagurus checkpoint rm` removes some, and `pagurus quota` shows how much there is"
	return refused(sharing{what: "checkpoints", then: then, each: l.Each, all: l.All}, u.Bytes, uid, more)
}
