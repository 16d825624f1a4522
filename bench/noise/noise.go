// Package noise measures interruptions of a core. A fixed quantum of work is repeated, and all
// time beyond the best one was taken from it (Sottile and Minnich, 2004).
//
// It must not know what the core is for, and imports little, so that the probe of a guest starts
// at once. Its tests probe the machine on which they run.
package noise

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Core is the result for one core.
type Core struct {
	CPU     int       `json:"cpu"`
	Quanta  []float64 `json:"quanta_s"` // durations
	Sources []Source  `json:"sources"`  // possible causes, the largest first
}

// sortSources sorts by time, then by count, in descending order.
func sortSources(all []Source) {
	slices.SortFunc(all, func(a, b Source) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Name, b.Name))
	})
}

// Source is a possible cause of interruptions.
type Source struct {
	Name    string  `json:"name"`
	Count   uint64  `json:"count,omitempty"`
	Seconds float64 `json:"seconds,omitempty"` // where the kernel counts time
}

// Best returns how long a quantum takes without interruption.
func (c Core) Best() float64 {
	if len(c.Quanta) == 0 {
		return math.NaN()
	}
	return slices.Min(c.Quanta)
}

// Lost returns the share of all time by which the quanta took longer than the best one.
func (c Core) Lost() float64 {
	return 1 - c.Best()*float64(len(c.Quanta))/c.Busy().Seconds()
}

// Add adds a later result of the same core with the same quanta.
func (c *Core) Add(more Core) {
	c.Quanta = append(c.Quanta, more.Quanta...)
	for _, s := range more.Sources {
		if i := slices.IndexFunc(c.Sources, func(had Source) bool { return had.Name == s.Name }); i >= 0 {
			c.Sources[i].Count += s.Count
			c.Sources[i].Seconds += s.Seconds
		} else {
			c.Sources = append(c.Sources, s)
		}
	}
	sortSources(c.Sources)
}

// Longest returns the longest interruption, in seconds, whether it has one cause or several.
func (c Core) Longest() float64 {
	if len(c.Quanta) == 0 {
		return math.NaN()
	}
	return slices.Max(c.Quanta) - c.Best()
}

// Busy returns how long all quanta took.
func (c Core) Busy() time.Duration {
	all := 0.0
	for _, q := range c.Quanta {
		all += q
	}
	return time.Duration(all * float64(time.Second))
}

// Step returns how many times longer a step of so many ranks takes, as in bench.PredictStep, but
// as the mean of all possible draws. It returns NaN if nothing was measured.
func (c Core) Step(ranks int) float64 {
	sorted, sum := slices.Sorted(slices.Values(c.Quanta)), 0.0
	n := float64(len(sorted))
	for i, q := range sorted { // q is the longest of the ranks' quanta
		sum += q * (math.Pow(float64(i+1)/n, float64(ranks)) - math.Pow(float64(i)/n, float64(ranks)))
	}
	return sum / c.Best()
}

// Bin counts interruptions of at least From seconds, and less than To.
type Bin struct {
	From  float64 `json:"from_s"`
	To    float64 `json:"to_s"`
	Count int     `json:"count"`
}

// leastBin is the shortest interruption of interest, in seconds.
const leastBin = 1e-6

// Histogram counts interruptions by their length, in bins that are each ten times as wide as the
// one before. The first bin holds those below a microsecond.
func (c Core) Histogram() (bins []Bin) {
	bins = []Bin{{0, leastBin, 0}}
	best := c.Best()
	for _, q := range c.Quanta {
		i := 0
		if over := q - best; over >= leastBin {
			i = 1 + int(math.Floor(math.Log10(over/leastBin)+1e-9))
		}
		for len(bins) <= i {
			last := bins[len(bins)-1]
			bins = append(bins, Bin{last.To, last.To * 10, 0})
		}
		bins[i].Count++
	}
	return bins
}
