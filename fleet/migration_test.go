package fleet_test

import (
	"testing"
	"time"

	"pagurus/fleet"
)

// A round keeps its first observation, and the number of rounds is limited.
func TestRoundsAreOfTheirBeginnings(t *testing.T) {
	var all []fleet.Round
	for _, p := range []fleet.Progress{{}, {Rounds: 1, RemainingBytes: 90}, {Rounds: 1, RemainingBytes: 40, SentBytes: 50}, {Rounds: 3, RemainingBytes: 7, SentBytes: 100, Elapsed: time.Second}, {Rounds: 2}} {
		all = p.Begun(all)
	}
	if len(all) != 2 || all[0] != (fleet.Round{Number: 1, LeftBytes: 90}) || all[1] != (fleet.Round{Number: 3, LeftBytes: 7, SentBytes: 100, At: time.Second}) {
		t.Errorf("they are %+v", all)
	}
	for n := range 1000 {
		all = fleet.Progress{Rounds: n}.Begun(all)
	}
	if len(all) != 100 || all[99].Number != 101 {
		t.Errorf("kept are %d, the last %+v", len(all), all[len(all)-1])
	}
}
