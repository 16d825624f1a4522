package pace

import (
	"testing"
	"time"

	"pagurus/fleet"
)

func TestPatience(t *testing.T) {
	for _, c := range []struct {
		mode     fleet.Mode
		downtime time.Duration
		want     time.Duration
	}{
		{fleet.PreCopy, 50 * time.Millisecond, Standing},
		{fleet.PreCopy, time.Minute, 2 * time.Minute},
		{"", time.Minute, 2 * time.Minute},
		{fleet.StopAndCopy, time.Hour, Standing},
		{fleet.PostCopy, time.Minute, Standing},
	} {
		if got := Patience(fleet.Limits{Mode: c.mode, Downtime: c.downtime}); got != c.want {
			t.Errorf("%s, %s: %s, want %s", c.mode, c.downtime, got, c.want)
		}
	}
}
