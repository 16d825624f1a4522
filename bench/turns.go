package bench

import (
	"math/rand/v2"
	"slices"
)

// targetOrders holds the orders of the targets in the next rounds of one program.
type targetOrders struct{ left [][]int }

// next returns the targets in the order of the next round. After len(targets) rounds, or twice
// as many if that is odd, each was equally often in each place, and equally often just after
// each other. So aftereffects of a run, such as a warm machine or processes to remove, affect
// all targets alike. The order of the rounds is random.
func (t *targetOrders) next(source *rand.Rand, targets []string) []string {
	if len(t.left) == 0 {
		t.left = williams(len(targets))
		source.Shuffle(len(t.left), func(i, j int) { t.left[i], t.left[j] = t.left[j], t.left[i] })
	}
	order := make([]string, len(targets))
	for place, target := range t.left[0] {
		order[place] = targets[target]
	}
	t.left = t.left[1:]
	return order
}

// williams returns orders of n things in which aftereffects are balanced: E. J. Williams,
// Australian Journal of Scientific Research A 2, 149 (1949). The first is 0, 1, n-1, 2, n-2, ….
// In the others a number is added to each, modulo n. For odd n, each order is also there
// backwards.
func williams(n int) (all [][]int) {
	for add := range n {
		row := make([]int, n)
		for place := range row {
			step := (place + 1) / 2
			if place%2 == 0 {
				step = n - step
			}
			row[place] = (step + add) % n
		}
		all = append(all, row)
		if n%2 == 1 && n > 1 {
			back := slices.Clone(row)
			slices.Reverse(back)
			all = append(all, back)
		}
	}
	return all
}
