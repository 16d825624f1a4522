package placement

import (
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

func TestReasonSaysOfTheOwner(t *testing.T) {
	at := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	for away, want := range map[time.Duration]string{
		90 * time.Minute:       "its owner away for 1h30m0s",
		365 * 24 * time.Hour:   "no sign of its owner yet",
		400 * 24 * time.Hour:   "no sign of its owner yet",
		365*24*time.Hour - 1e9: "its owner away for",
	} {
		e := &entry{host: &fleet.Host{Facts: fleet.Facts{Owner: &fleet.Owner{State: fleet.OwnerAbsent, Since: at.Add(-away)}}}}
		if got := (&Survey{At: at}).reason("it is: ", e); !strings.Contains(got, want) {
			t.Errorf("%s: %q", away, got)
		}
	}
}
