package fleet_test

import (
	"testing"

	"pagurus/fleet"
)

func TestSlotsAddUpAndDifferByOneAtMost(t *testing.T) {
	for guests := 1; guests <= 9; guests++ {
		for ranks := 0; ranks <= 40; ranks++ {
			sum, s := 0, fleet.JobSpec{Ranks: ranks, Guests: guests}
			for i := range guests {
				n := s.Slots(i)
				sum += n
				if n > s.Slots(0) || s.Slots(0)-n > 1 {
					t.Errorf("%d ranks on %d guests: guest %d has %d", ranks, guests, i, n)
				}
			}
			if sum != ranks {
				t.Errorf("%d ranks on %d guests add up to %d", ranks, guests, sum)
			}
		}
	}
}
