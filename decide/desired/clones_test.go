package desired

import (
	"fmt"
	"testing"

	"pagurus/fleet"
)

// One host of the machine that has a job's files is told which clones are needed, until nothing is known of the job any more.
func TestClonesOfAJob(t *testing.T) {
	on := func(machine string) fleet.Host { return fleet.Host{Facts: fleet.Facts{Machine: machine}} }
	spec := fleet.JobSpec{Export: "/home/x", Machine: "m", Guests: 1, UID: 5}
	s := fleet.Snapshot{
		Hosts: map[fleet.HostID]fleet.Host{"a": on("other"), "b": on("m"), "c": on("m")},
		Jobs: map[fleet.JobID]fleet.Job{
			"j1": {ID: "j1", Born: 1, State: fleet.JobRunning, ShareHost: "c", Spec: spec, Checkpoints: 4},
			"j2": {ID: "j2", State: fleet.JobSuspended, Spec: spec, Checkpoints: 1},
			"j3": {ID: "j3", State: fleet.JobEnded, Spec: spec, Checkpoints: 1},
			"j4": {ID: "j4", State: fleet.JobEnded, Spec: spec, Checkpoints: 1},
			"j5": {ID: "j5", State: fleet.JobRunning, Spec: spec},
		},
		Guests: map[fleet.GuestID]fleet.Guest{"j3g0": {}},
		Checkpoints: map[fleet.CheckpointID]fleet.Checkpoint{
			"j1c1": {ID: "j1c1", Job: "j1", Phase: fleet.Dropping}, "j1c2": {ID: "j1c2", Job: "j1", Phase: fleet.Kept},
			"j1c3": {ID: "j1c3", Job: "j1", Phase: fleet.Void}, "j1c4": {ID: "j1c4", Job: "j1", Phase: fleet.Arming},
			"j2c1": {ID: "j2c1", Job: "j2", Phase: fleet.Kept},
		},
	}
	told := ""
	for _, host := range []fleet.HostID{"a", "b", "c"} {
		for _, k := range clones(s)[host] {
			told += fmt.Sprintf("%s: %s %d %v; ", host, k.Job, k.Last, k.Keep)
		}
	}
	if told != "b: j2 1 [j2c1]; b: j3 1 []; c: j1 4 [j1c2 j1c4]; " {
		t.Error(told)
	}
}
