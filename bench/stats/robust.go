package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// Trimmed returns the mean after dropping the share cut of the samples at both ends, with Tukey
// and McLaughlin's interval (1963) in Wilcox's form. It uses the winsorized deviation. It is for
// samples with a few outliers.
func Trimmed(samples []float64, cut, confidence float64) (Interval, error) {
	if cut < 0 || cut >= 0.5 {
		return Interval{}, fmt.Errorf("a share of %g cannot be dropped at both ends", cut)
	}
	n := len(samples)
	g := int(cut * float64(n))
	kept := n - 2*g
	if kept < 2 {
		return Interval{}, ErrTooFew
	}
	s := slices.Sorted(slices.Values(samples))
	mean := stat.Mean(s[g:n-g], nil)
	for i := range g {
		s[i], s[n-1-i] = s[g], s[n-1-g]
	}
	dev := stat.StdDev(s, nil)
	t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: float64(kept - 1)}.Quantile(1 - (1-confidence)/2)
	half := t * dev / ((1 - 2*cut) * math.Sqrt(float64(n)))
	return Interval{mean, mean - half, mean + half, confidence, n}, nil
}

// resamples is how often Resampled draws: enough for the third digit of a 99 % interval.
const resamples = 4000

// Resampled returns the median with the bootstrap's percentile interval (Efron 1979). The same
// samples and seed give the same interval.
func Resampled(samples []float64, confidence float64, seed uint64) (Interval, error) {
	n := len(samples)
	if n < 2 {
		return Interval{}, ErrTooFew
	}
	source := rand.New(rand.NewPCG(seed, uint64(n)))
	drawn, medians := make([]float64, n), make([]float64, resamples)
	for i := range medians {
		for j := range drawn {
			drawn[j] = samples[source.IntN(n)]
		}
		slices.Sort(drawn)
		medians[i] = middle(drawn)
	}
	slices.Sort(medians)
	at := func(p float64) float64 { return stat.Quantile(p, stat.LinInterp, medians, nil) }
	return Interval{middle(slices.Sorted(slices.Values(samples))), at((1 - confidence) / 2), at((1 + confidence) / 2), confidence, n}, nil
}

// middle is the median of sorted samples.
func middle(sorted []float64) float64 {
	n := len(sorted)
	if n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[n/2]
}
