package fleet

import "testing"

// Clones of other jobs, of another job with the same number, and of checkpoints that the controller did not know yet stay, and so
// does whatever else somebody has put there.
func TestClonesThatAreNeeded(t *testing.T) {
	k := JobClones{Job: "j3", Born: 7, Last: 5, Keep: []CheckpointID{"j3c2", "j3c5"}}
	for folder, needed := range map[string]bool{
		ClonesOf("j3c1", 7): false, ClonesOf("j3c2", 7): true, ClonesOf("j3c4", 7): false, ClonesOf("j3c5", 7): true, ClonesOf("j3c6", 7): true,
		ClonesOf("j3c1", 8): true, ClonesOf("j33c1", 7): true, ClonesOf("j4c1", 7): true, "j3c1": true, "j3-7": true, "notes": true, "": true,
	} {
		if k.Needs(folder) != needed {
			t.Errorf("%q: %v", folder, !needed)
		}
	}
	for folder, is := range map[string]bool{"j3c1-7": true, "j3c1": false, "j33c1-7": false, "j3c1-7/..": false, "j3c/../x-7": false, "": false} {
		if IsClonesOf(folder, "j3") != is {
			t.Errorf("%q is of job j3: %v", folder, !is)
		}
	}
}
