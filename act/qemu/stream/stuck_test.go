package stream

import (
	"slices"
	"testing"
)

// A source is stuck whose sending threads are gone while it still waits for them,
// now and a while later.
func TestStuck(t *testing.T) {
	for _, c := range []struct {
		first, later []string
		want         bool
	}{
		{[]string{"mig/src/main"}, []string{"mig/src/main"}, true},
		{[]string{"mig/src/main", "mig/src/send"}, nil, false},
		{nil, []string{"mig/src/main"}, false},
		{[]string{"mig/src/main"}, nil, false},                                      // it was being cleared away
		{[]string{"mig/src/main"}, []string{"mig/src/main", "mig/src/send"}, false}, // it was being made
	} {
		now, looks := c.first, 0
		has := func(threads ...string) bool {
			if looks++; looks > 2 {
				now = c.later
			}
			return slices.ContainsFunc(threads, func(name string) bool { return slices.Contains(now, name) })
		}
		if got := Stuck(has); got != c.want {
			t.Errorf("%v, later %v: %t", c.first, c.later, got)
		}
	}
}
