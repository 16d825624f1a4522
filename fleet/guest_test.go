package fleet_test

import (
	"strings"
	"testing"

	"pagurus/fleet"
)

func TestGuestNames(t *testing.T) {
	for _, good := range []fleet.GuestID{"j7g2", "a", "A-b_9"} {
		if err := good.Check(); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []fleet.GuestID{"", ".", "..", "-a", "_a", "a/b", "a,b", "a=b", "a b", "ä", "a\x00", fleet.GuestID(strings.Repeat("a", 65))} {
		if bad.Check() == nil {
			t.Errorf("%q was taken for a guest", bad)
		}
	}
}
