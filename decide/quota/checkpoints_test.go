package quota

import (
	"strings"
	"testing"

	"pagurus/fleet"
)

// What is refused is said in words, with who may do what about it.
func TestCheckpointsAreRefused(t *testing.T) {
	const mib = 1 << 20
	one := func(job fleet.JobID, bytes int64) []fleet.Checkpoint {
		return []fleet.Checkpoint{{ID: fleet.CheckpointName(job, 1), Job: job, Phase: fleet.Kept, Guests: []fleet.CheckpointPart{{Guest: fleet.GuestID(job) + "g0", Vault: "v", Bytes: bytes, NewBytes: 1}}}}
	}
	all := map[fleet.JobID][]fleet.Checkpoint{"j1": one("j1", 60*mib), "j2": one("j2", 30*mib), "j3": one("j3", 5*mib), "j4": one("j4", 1<<40)}
	owner := func(j fleet.JobID) (uint32, bool) {
		return map[fleet.JobID]uint32{"j1": 7, "j2": 7, "j3": 8}[j], j != "j4"
	}
	u := UseOf(all, owner, nil)
	if u.All != 95*mib || u.Bytes[7] != 90*mib || u.Count[7] != 2 || len(u.Bytes) != 2 {
		t.Fatalf("%+v", u)
	}
	all["j2"][0].Guests[0].Vault = "w"
	if in := InVaults(all, owner, nil, 7); in["v"] != 60*mib || in["w"] != 30*mib || len(in) != 2 {
		t.Errorf("%+v", in)
	}
	if in := InVaults(all, owner, map[fleet.CheckpointID]bool{"j1c1": true}, 7); in["v"] != 0 || in["w"] != 30*mib {
		t.Errorf("%+v", in)
	}
	if u := UseOf(all, owner, map[fleet.CheckpointID]bool{"j1c1": true}); u.Bytes[7] != 30*mib {
		t.Errorf("%+v", u)
	}
	for _, c := range []struct {
		l    fleet.CheckpointLimits
		uid  uint32
		more int64
		says string
	}{
		{fleet.CheckpointLimits{}, 7, 1 << 50, ""},
		{fleet.CheckpointLimits{Each: 100 * mib}, 7, 10 * mib, ""},
		{fleet.CheckpointLimits{Each: 100 * mib}, 7, 11 * mib, "checkpoints of uid 7 have 90 MiB, this one has 11 MiB or more, and each user may have 100 MiB"},
		{fleet.CheckpointLimits{Each: 90 * mib}, 7, 0, "this one has more, and each user may have 90 MiB"},
		{fleet.CheckpointLimits{Each: 90 * mib}, 8, 0, ""},
		{fleet.CheckpointLimits{All: 96 * mib}, 9, 2 * mib, "checkpoints of all users have 95 MiB, this one has 2 MiB or more, and they may have 96 MiB together"},
		{fleet.CheckpointLimits{All: 100 * mib}, 7, mib, "is for users who have less of them than uid 7"},
		{fleet.CheckpointLimits{All: 100 * mib}, 9, mib, ""},
	} {
		if got := RefusedCheckpoint(c.l, u, c.uid, c.more); (got == "") != (c.says == "") || !strings.Contains(got, c.says) {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
