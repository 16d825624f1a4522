package stream

import (
	"slices"
	"testing"
)

// threads are what there is at each look.
type threads struct {
	now, later []string
	free       bool // the first waits for no lock
	looks      int
}

func (t *threads) Locked() bool {
	if t.looks++; t.looks > 1 {
		t.now = t.later
	}
	return !t.free
}

func (t *threads) HasThread(names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return slices.Contains(t.now, name) })
}

// A source is stuck whose sending threads are gone while it still waits for them,
// now and a while later, and whose first thread waits, too.
func TestStuck(t *testing.T) {
	main, both := []string{"mig/src/main"}, []string{"mig/src/main", "mig/src/send"}
	for _, c := range []struct {
		threads
		want bool
	}{
		{threads{now: main, later: main}, true},
		{threads{now: main, later: main, free: true}, false}, // it does answer, if slowly
		{threads{now: both, later: main}, false},
		{threads{later: main}, false},
		{threads{now: main}, false},              // it was being cleared away
		{threads{now: main, later: both}, false}, // it was being made
	} {
		if got := Stuck(&c.threads); got != c.want {
			t.Errorf("%+v: %t", c.threads, got)
		}
	}
}
