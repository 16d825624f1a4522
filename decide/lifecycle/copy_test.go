package lifecycle

import (
	"slices"
	"testing"
	"time"

	"pagurus/fleet"
)

// A round is the difference between two samples of a copy, and compressed memory counts
// in full.
func TestRoundsAreDifferences(t *testing.T) {
	begun := fleet.Progress{RemainingBytes: 100}
	first := fleet.Progress{Elapsed: 2 * time.Second, SentBytes: 100, CopiedBytes: 80, RemainingBytes: 30}
	second := fleet.Progress{Elapsed: 3 * time.Second, SentBytes: 110, CopiedBytes: 110, RemainingBytes: 5}
	want := []Round{{Took: 2 * time.Second, SentBytes: 100, LeftBytes: 30}, {Took: time.Second, SentBytes: 30, LeftBytes: 5}}
	if got := Rounds([]fleet.Progress{begun, first, second}); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, none := range [][]fleet.Progress{nil, {begun}} {
		if got := Rounds(none); len(got) > 0 {
			t.Errorf("%d looks give %+v", len(none), got)
		}
	}
}
