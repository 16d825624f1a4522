package agent

import "testing"

func TestSlotsAddUpAndDifferByOneAtMost(t *testing.T) {
	for guests := 1; guests <= 9; guests++ {
		for ranks := 0; ranks <= 40; ranks++ {
			sum := 0
			for i := range guests {
				n := slots(ranks, guests, i)
				sum += n
				if n > slots(ranks, guests, 0) || slots(ranks, guests, 0)-n > 1 {
					t.Errorf("%d ranks on %d guests: guest %d has %d", ranks, guests, i, n)
				}
			}
			if sum != ranks {
				t.Errorf("%d ranks on %d guests add up to %d", ranks, guests, sum)
			}
		}
	}
}
