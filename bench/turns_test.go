package bench

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestTurnsAreBalanced: each target is as often in each place, and right behind each
// other, as any.
func TestTurnsAreBalanced(t *testing.T) {
	for n := 1; n <= 7; n++ {
		rounds := n
		if n%2 == 1 && n > 1 {
			rounds *= 2
		}
		var targets []string
		for i := range n {
			targets = append(targets, fmt.Sprint(i))
		}
		source := rand.New(rand.NewPCG(uint64(n), 1))
		var all targetOrders
		for again := range 3 {
			placed, behind := map[string]int{}, map[string]int{}
			for range rounds {
				order := all.next(source, targets)
				for i, target := range order {
					placed[fmt.Sprint(target, " at ", i)]++
					if i > 0 {
						behind[order[i-1]+" before "+target]++
					}
				}
			}
			if len(placed) != n*n || len(behind) != n*(n-1) {
				t.Errorf("%d targets, time %d: %d places and %d neighbours in %d rounds", n, again, len(placed), len(behind), rounds)
			}
			for what, times := range placed {
				if times != rounds/n {
					t.Errorf("%d targets: %s %d times of %d", n, what, times, rounds)
				}
			}
			for what, times := range behind {
				if times != rounds/n {
					t.Errorf("%d targets: %s %d times of %d", n, what, times, rounds)
				}
			}
		}
	}
}
