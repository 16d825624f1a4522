// Package stats has the statistics of benchmarks, based on gonum's distributions. Every figure
// has an interval. The package must not know what was measured. Its tests compare with published
// values.
package stats

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// ErrTooFew means that there are too few samples for an interval.
var ErrTooFew = errors.New("at least two samples are needed")

// Interval is an estimate with a range that contains the true value with the given confidence.
type Interval struct {
	Value      float64 `json:"value"`
	Low        float64 `json:"low"`
	High       float64 `json:"high"`
	Confidence float64 `json:"confidence"` // 0.95 for 95 %
	Samples    int     `json:"samples"`
}

// String formats the interval for people.
func (i Interval) String() string {
	return fmt.Sprintf("%.3g (%.0f %%: %.3g to %.3g, n=%d)", i.Value, 100*i.Confidence, i.Low, i.High, i.Samples)
}

// Mean returns the arithmetic mean with Student's interval (Student 1908), for normal samples of
// unknown variance.
func Mean(samples []float64, confidence float64) (Interval, error) {
	n := len(samples)
	if n < 2 {
		return Interval{}, ErrTooFew
	}
	mean, dev := stat.MeanStdDev(samples, nil)
	t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: float64(n - 1)}.Quantile(1 - (1-confidence)/2)
	half := t * dev / math.Sqrt(float64(n))
	return Interval{mean, mean - half, mean + half, confidence, n}, nil
}

// Ratio returns a divided by b, from samples taken in turn (a[i] beside b[i]). It is the
// geometric mean of the paired ratios, with Student's interval of their logarithms. All samples
// must be positive.
func Ratio(a, b []float64, confidence float64) (Interval, error) {
	if len(a) != len(b) {
		return Interval{}, fmt.Errorf("%d samples cannot be paired with %d", len(a), len(b))
	}
	logs := make([]float64, len(a))
	for i := range a {
		if a[i] <= 0 || b[i] <= 0 {
			return Interval{}, fmt.Errorf("pair %d is %g and %g: a ratio needs positive samples", i, a[i], b[i])
		}
		logs[i] = math.Log(a[i] / b[i])
	}
	m, err := Mean(logs, confidence)
	if err != nil {
		return Interval{}, err
	}
	return Interval{math.Exp(m.Value), math.Exp(m.Low), math.Exp(m.High), confidence, m.Samples}, nil
}

// RatioOfGroups returns a divided by b, from samples that are not paired. It is the ratio of
// geometric means, with Welch's interval of their logarithms. All samples must be positive.
func RatioOfGroups(a, b []float64, confidence float64) (Interval, error) {
	if len(a) < 2 || len(b) < 2 {
		return Interval{}, ErrTooFew
	}
	var logs [2][]float64
	for i, group := range [][]float64{a, b} {
		for _, v := range group {
			if v <= 0 {
				return Interval{}, fmt.Errorf("one sample is %g: a ratio needs positive samples", v)
			}
			logs[i] = append(logs[i], math.Log(v))
		}
	}
	off, dev, nu := apartBy(logs[0], logs[1])
	half := 0.0
	if dev > 0 {
		half = dev * distuv.StudentsT{Mu: 0, Sigma: 1, Nu: nu}.Quantile(1-(1-confidence)/2)
	}
	return Interval{math.Exp(off), math.Exp(off - half), math.Exp(off + half), confidence, min(len(a), len(b))}, nil
}

// apartBy returns the difference of two means, its deviation, and Welch's degrees of freedom.
// The last is 0 if the deviation is 0.
func apartBy(a, b []float64) (off, dev, nu float64) {
	meanA, varA := stat.MeanVariance(a, nil)
	meanB, varB := stat.MeanVariance(b, nil)
	partA, partB := varA/float64(len(a)), varB/float64(len(b))
	if whole := partA + partB; whole > 0 {
		dev = math.Sqrt(whole)
		nu = whole * whole / (partA*partA/float64(len(a)-1) + partB*partB/float64(len(b)-1))
	}
	return meanA - meanB, dev, nu
}

// Median returns the median with the interval of order statistics, which assumes no distribution
// (Conover, Practical Nonparametric Statistics, 3.2): the widest pair of samples that the
// binomial distribution allows.
func Median(samples []float64, confidence float64) (Interval, error) {
	n := len(samples)
	if n < 2 {
		return Interval{}, ErrTooFew
	}
	s := slices.Sorted(slices.Values(samples))
	b := distuv.Binomial{N: float64(n), P: 0.5}
	low := 0
	for low+1 < n/2 && b.CDF(float64(low)) <= (1-confidence)/2 {
		low++
	}
	if low > 0 {
		low--
	}
	return Interval{middle(s), s[low], s[n-1-low], confidence, n}, nil
}

// Proportion returns the share of hits among trials, with Clopper and Pearson's interval (1934),
// whose confidence is at least the given one.
func Proportion(hits, trials int, confidence float64) (Interval, error) {
	if trials < 1 || hits < 0 || hits > trials {
		return Interval{}, fmt.Errorf("%d of %d is no share", hits, trials)
	}
	k, n, tail := float64(hits), float64(trials), (1-confidence)/2
	low, high := 0.0, 1.0
	if hits > 0 {
		low = distuv.Beta{Alpha: k, Beta: n - k + 1}.Quantile(tail)
	}
	if hits < trials {
		high = distuv.Beta{Alpha: k + 1, Beta: n - k}.Quantile(1 - tail)
	}
	return Interval{k / n, low, high, confidence, trials}, nil
}
