package quota

import (
	"slices"
	"strings"
	"testing"

	"pagurus/fleet"
)

func TestGrowthIsBounded(t *testing.T) {
	for _, c := range []struct {
		each, has, more int
		says            string
	}{
		{0, 100, 100, ""},
		{8, 0, 8, ""},
		{8, 6, 2, ""},
		{8, 6, 3, "have grown by 6 of the 8 guests by which they may grow together, and not by 3 more"},
		{8, 9, 1, "have grown by 9 of the 8"}, // the limit was lowered
	} {
		if got := RefusedGrowth(c.each, c.has, c.more); (got == "") != (c.says == "") || !strings.Contains(got, c.says) {
			t.Errorf("%+v: %q", c, got)
		}
	}
	if RefusedGrow(0, 100)+RefusedGrow(8, 8) != "" || !strings.Contains(RefusedGrow(8, 9), "by 8 guests at most, and not by 9; ask for fewer with --grow") {
		t.Errorf("%q", RefusedGrow(8, 9))
	}
	j := fleet.Job{State: fleet.JobRunning, Grown: 2, Growths: []fleet.Growth{{State: fleet.GrowthWaiting, Count: 3}}}
	if n := Grown(j); n != 5 {
		t.Errorf("one that waits for 3 and has 2 counts as %d", n)
	}
	if j.Growths[0].State = fleet.GrowthStarting; Grown(j) != 2 { // Grown has them already
		t.Errorf("%d", Grown(j))
	}
	other, none := j, fleet.Job{State: fleet.JobRunning}
	other.Spec.UID, none.Spec.UID = 7, 8
	if all, users := GrownOf(slices.Values([]fleet.Job{j, other, other, none})); all != 6 || len(users) != 2 || users[7] != 4 || users[0] != 2 {
		t.Errorf("%d, %v", all, users)
	}
	if j.State = fleet.JobEnded; Grown(j) != 0 {
		t.Errorf("%d", Grown(j))
	}
}
