package bench

import (
	"fmt"
	"slices"
	"time"

	"pagurus/bench/stats"
)

// farther is how many times the least distance is far. CPUs that share no cache are
// five or six times as far from each other as those that do, and one and the same
// distance measures by a half more at times.
const farther = 2.5

// Distance is how far a machine's CPUs were from each other before and after a run; 0:
// not known.
type Distance struct{ Least, Most time.Duration }

// How a run's distance is to those of others.
type distanceKind int

const (
	near    distanceKind = iota // or all are alike, or not known
	far                         // they did not share a cache, as in the nearest run they did
	changed                     // one before, the other after it
)

// kinds tell distances from each other.
func kinds(all []Distance) []distanceKind {
	least := nearest(all)
	isFar := func(d time.Duration) bool { return least > 0 && float64(d) > farther*float64(least) }
	out := make([]distanceKind, len(all))
	for i, d := range all {
		switch {
		case isFar(d.Least):
			out[i] = far
		case isFar(d.Most):
			out[i] = changed
		}
	}
	return out
}

// like reports whether two runs can be compared: one in which it changed with none.
func (k distanceKind) like(other distanceKind) bool { return k == other && k != changed }

// nearest is the least distance that is known; 0: none is.
func nearest(all []Distance) (least time.Duration) {
	for _, d := range all {
		if d.Least > 0 && (least == 0 || d.Least < least) {
			least = d.Least
		}
	}
	return least
}

// distance is that of a run; older records have only the most.
func (r Run) distance() Distance {
	if r.Least == 0 {
		return Distance{r.Apart, r.Apart}
	}
	return Distance{r.Least, r.Apart}
}

// alike leaves of pairs those that are alike in how far the CPUs were from each other. It
// tells in how many runs they were far, and how far at most.
func (r *Record) alike(both pairs) (like pairs, runs int, most time.Duration) {
	seen := map[int][]distanceKind{}
	for i, kind := range kinds(r.distances()) {
		run := r.Runs[i]
		if run.Program != both.program || run.Target != both.target && run.Target != both.base || !slices.Contains(both.rounds, run.Round) {
			continue
		}
		seen[run.Round] = append(seen[run.Round], kind)
		if kind != near {
			runs, most = runs+1, max(most, run.Apart)
		}
	}
	for i, round := range both.rounds {
		if k := seen[round]; len(k) == 2 && k[0].like(k[1]) {
			like.add(both.ours[i], both.theirs[i], round)
		}
	}
	return like, runs, most
}

func (r *Record) distances() (all []Distance) {
	for _, run := range r.Runs {
		all = append(all, run.distance())
	}
	return all
}

// AlikeRatio is the ratio of a figure on two targets, of the pairs that are alike in how
// far the CPUs were from each other.
func (r *Record) AlikeRatio(program, figure, target, base string) (stats.Interval, error) {
	like, _, _ := r.alike(r.pairs(program, figure, target, base))
	return stats.Ratio(like.ours, like.theirs, r.Spec.Confidence)
}

// apart says in how many runs the CPUs were far from each other, before or after, and what
// the ratio of the pairs is that are alike in that.
func (r *Record) apart(both pairs) []string {
	like, runs, most := r.alike(both)
	if runs == 0 {
		return nil
	}
	said := fmt.Sprintf("in %d of %d runs this machine's CPUs were far from each other (%s there and back, else %s), as those of a virtual machine are when the one below moves them", runs, 2*len(both.rounds), most, nearest(r.distances()))
	if v, err := stats.Ratio(like.ours, like.theirs, r.Spec.Confidence); err == nil {
		said += fmt.Sprintf("; of the %d pairs that are alike in that the ratio is %s", len(like.rounds), v)
	}
	return []string{said}
}
