// Package noise measures what else goes on on a core: a fixed quantum of work is
// done again and again, and whatever it takes longer than at its best was taken
// from it (Sottile and Minnich, 2004).
//
// It must not know what the core is for, and imports little: the probe of a guest starts
// at once. Its tests probe the machine they run on.
package noise

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Core is what was found on one core.
type Core struct {
	CPU     int       `json:"cpu"`
	Quanta  []float64 `json:"quanta_s"` // how long each took
	Sources []Source  `json:"sources"`  // what happened meanwhile, the most first
}

// sortSources puts first what took most time, then what came most often.
func sortSources(all []Source) {
	slices.SortFunc(all, func(a, b Source) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Name, b.Name))
	})
}

// Source is something that can have interrupted.
type Source struct {
	Name    string  `json:"name"`
	Count   uint64  `json:"count,omitempty"`
	Seconds float64 `json:"seconds,omitempty"` // where the kernel counts time
}

// Best is how long a quantum takes that nothing interrupts.
func (c Core) Best() float64 {
	if len(c.Quanta) == 0 {
		return math.NaN()
	}
	return slices.Min(c.Quanta)
}

// Lost is the share of all time that the quanta took longer than at their best.
func (c Core) Lost() float64 {
	return 1 - c.Best()*float64(len(c.Quanta))/c.Busy().Seconds()
}

// Add adds what was found on the same core at another time, of the same quanta.
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

// Longest is the longest interruption, in seconds: by one cause or several.
func (c Core) Longest() float64 {
	if len(c.Quanta) == 0 {
		return math.NaN()
	}
	return slices.Max(c.Quanta) - c.Best()
}

// Busy is how long all quanta took.
func (c Core) Busy() time.Duration {
	all := 0.0
	for _, q := range c.Quanta {
		all += q
	}
	return time.Duration(all * float64(time.Second))
}

// Step is how many times longer a step of so many ranks takes, as bench.PredictStep draws it, in
// the mean of all that can be drawn; NaN where nothing was measured.
func (c Core) Step(ranks int) float64 {
	sorted, sum := slices.Sorted(slices.Values(c.Quanta)), 0.0
	n := float64(len(sorted))
	for i, q := range sorted { // the longest of the ranks' is this one
		sum += q * (math.Pow(float64(i+1)/n, float64(ranks)) - math.Pow(float64(i)/n, float64(ranks)))
	}
	return sum / c.Best()
}

// Bin is one of a histogram's: interruptions of at least From seconds, and less
// than To.
type Bin struct {
	From  float64 `json:"from_s"`
	To    float64 `json:"to_s"`
	Count int     `json:"count"`
}

// leastBin is below what nobody asks where a quantum's time went.
const leastBin = 1e-6

// Histogram counts interruptions by their length, in bins each ten times the one
// before. The first has what is shorter than a microsecond.
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
