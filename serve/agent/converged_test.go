package agent

import (
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// A copy goes on until the rest fits into the downtime, and ends if it never will.
func TestACopyConvergesOrIsGivenUp(t *testing.T) {
	// rounds is a copy at 100 MiB/s whose rounds leave these MiB.
	rounds := func(left ...int64) []fleet.Progress {
		seen := []fleet.Progress{{}}
		for _, n := range left {
			last := seen[len(seen)-1]
			seen = append(seen, fleet.Progress{Elapsed: last.Elapsed + time.Second, SentBytes: last.SentBytes + 100<<20, RemainingBytes: n << 20})
		}
		return seen
	}
	l := fleet.Limits{Downtime: 100 * time.Millisecond, Rounds: 3}
	for name, c := range map[string]struct {
		seen []fleet.Progress
		is   bool
		says string
	}{
		"nothing seen":   {nil, false, ""},
		"just begun":     {rounds(), false, ""},
		"much is left":   {rounds(50, 20), false, ""},
		"it fits":        {rounds(50, 9), true, ""},
		"the last round": {rounds(50, 50, 9), true, ""},
		"it never fits":  {rounds(50, 50, 50), false, "after 3 rounds 50.0 MiB are still left"},
	} {
		is, err := Converged(l, c.seen)
		if is != c.is || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v", name, is, err)
		}
	}
}
