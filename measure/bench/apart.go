package bench

import (
	"fmt"
	"slices"
	"time"

	"pagurus/measure/stats"
)

// farther is how many times the least distance is far. CPUs that share no cache are
// five or six times as far from each other as those that do, and one and the same
// distance measures by a half more at times.
const farther = 2.5

// Far says of the distances of runs which were far: the machine's CPUs did not share a
// cache then, as in the nearest they did. Where all are alike, or not known, none is.
func Far(apart []time.Duration) []bool {
	least := nearest(apart)
	far := make([]bool, len(apart))
	for i, d := range apart {
		far[i] = least > 0 && float64(d) > farther*float64(least)
	}
	return far
}

// nearest is the least distance that is known; 0: none is.
func nearest(apart []time.Duration) (least time.Duration) {
	for _, d := range apart {
		if d > 0 && (least == 0 || d < least) {
			least = d
		}
	}
	return least
}

// apart says in how many runs the CPUs were far from each other, and what the ratio of
// those pairs is of which neither or both were: like with like.
func (r *Record) apart(both pairs) []string {
	distances := make([]time.Duration, len(r.Runs))
	for i, run := range r.Runs {
		distances[i] = run.Apart
	}
	far, runs, most := map[int]int{}, 0, time.Duration(0)
	for i, is := range Far(distances) {
		run := r.Runs[i]
		if is && run.Program == both.program && (run.Target == both.target || run.Target == both.base) && slices.Contains(both.rounds, run.Round) {
			far[run.Round]++
			runs, most = runs+1, max(most, run.Apart)
		}
	}
	if runs == 0 {
		return nil
	}
	var like pairs
	for i, round := range both.rounds {
		if far[round] != 1 {
			like.add(both.ours[i], both.theirs[i], round)
		}
	}
	said := fmt.Sprintf("in %d of %d runs this machine's CPUs were far from each other (%s there and back, else %s), as those of a virtual machine are when the one below moves them", runs, 2*len(both.rounds), most, nearest(distances))
	if v, err := stats.TrimmedRatio(like.ours, like.theirs, r.Spec.Trim, r.Spec.Confidence); err == nil {
		said += fmt.Sprintf("; of the %d pairs that are alike in that the ratio is %s", len(like.rounds), v)
	}
	return []string{said}
}
