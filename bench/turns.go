package bench

import (
	"math/rand/v2"
	"slices"
)

// targetOrders are the orders of the targets in the rounds to come of one program.
type targetOrders struct{ left [][]int }

// next gives the targets in the order of the next round. After len(targets) rounds, or
// twice as many where that is odd, each was as often in each place, and as often right
// behind each other, as any: what one leaves behind, a machine that is warm or a group
// of processes to be removed, all have alike. Which round comes when is by chance.
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

// williams gives orders of n things that are balanced for what each leaves to the next:
// E. J. Williams, Australian Journal of Scientific Research A 2, 149 (1949). The first is
// 0, 1, n-1, 2, n-2, …, the others are that with a number added to each, modulo n; of an
// odd n each is there backwards, too.
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
