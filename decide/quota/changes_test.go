package quota

import (
	"strings"
	"testing"

	"pagurus/fleet"
)

// What a request puts into the store counts with how often it is written, whoever's words are long.
func TestChangeCountsWhatIsWritten(t *testing.T) {
	long := fleet.JobSpec{Args: []string{"./a.out"}, Env: []string{"A=" + strings.Repeat("x", 40<<10)}}
	j := fleet.Job{Spec: long}
	submit := Change(fleet.Request{Verb: fleet.Submit, Spec: &long}, nil)
	cancel := Change(fleet.Request{Verb: fleet.Cancel}, []fleet.Job{j})
	restart := Change(fleet.Request{Verb: fleet.Restart}, []fleet.Job{j})
	if submit < 3*40<<10 || submit > 4*40<<10 || cancel < 40<<10 || cancel > 50<<10 || restart <= cancel {
		t.Errorf("submit %d, cancel %d, restart %d", submit, cancel, restart)
	}
	logout := Change(fleet.Request{Verb: fleet.Logout}, nil)
	moves := Change(fleet.Request{Verb: fleet.Migrate, Guests: make([]fleet.GuestID, 100)}, nil)
	if logout <= 0 || moves < 100*guestBytes {
		t.Errorf("logout %d, a move of a hundred %d", logout, moves)
	}
}
