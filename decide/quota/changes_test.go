package quota

import (
	"strings"
	"testing"

	"pagurus/fleet"
)

// What a request puts into the store counts with how long it is.
func TestChangeCountsWhatIsWritten(t *testing.T) {
	long := fleet.JobSpec{Args: []string{"./a.out"}, Env: []string{"A=" + strings.Repeat("x", 40<<10)}}
	submit, cancel := Change(fleet.Request{Verb: fleet.Submit, Spec: &long}), Change(fleet.Request{Verb: fleet.Cancel})
	if submit < 40<<10 || submit > 50<<10 || cancel <= 0 || cancel > 10<<10 {
		t.Errorf("submit %d, cancel %d", submit, cancel)
	}
	logout := Change(fleet.Request{Verb: fleet.Logout})
	moves := Change(fleet.Request{Verb: fleet.Migrate, Guests: make([]fleet.GuestID, 100)})
	if logout <= 0 || moves < 100*guestBytes {
		t.Errorf("logout %d, a move of a hundred %d", logout, moves)
	}
}
