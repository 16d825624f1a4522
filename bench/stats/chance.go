package stats

import (
	"errors"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// Welch returns the chance that means are as far apart as those of a and b although both samples
// have the same mean. The samples are not paired (Welch 1947).
func Welch(a, b []float64) (p float64, err error) {
	if len(a) < 2 || len(b) < 2 {
		return 0, ErrTooFew
	}
	off, dev, nu := apartBy(a, b)
	switch {
	case dev > 0:
		return 2 * distuv.StudentsT{Mu: 0, Sigma: 1, Nu: nu}.CDF(-math.Abs(off/dev)), nil
	case off == 0:
		return 1, nil
	}
	return 0, nil
}

// exactPairs is the largest number of pairs for which Wilcoxon counts all cases.
const exactPairs = 50

// Wilcoxon returns the chance that pairs differ as one-sidedly as a[i] and b[i] although neither
// is greater, by the signed-rank test (Wilcoxon 1945). It assumes no distribution. It ignores
// equal pairs.
func Wilcoxon(a, b []float64) (p float64, err error) {
	if len(a) != len(b) {
		return 0, errors.New("samples that are not paired have no signed ranks")
	}
	var d []float64
	for i := range a {
		if a[i] != b[i] {
			d = append(d, a[i]-b[i])
		}
	}
	if len(d) == 0 {
		return 1, nil
	}
	slices.SortFunc(d, func(x, y float64) int { return compare(math.Abs(x), math.Abs(y)) })
	// Ranks are doubled: equal differences share the mean of their ranks.
	var below, sum, squares int
	ranks := make([]int, len(d))
	for i := 0; i < len(d); {
		j := i
		for j < len(d) && math.Abs(d[j]) == math.Abs(d[i]) {
			j++
		}
		for k := i; k < j; k++ {
			ranks[k] = i + 1 + j
			sum, squares = sum+ranks[k], squares+ranks[k]*ranks[k]
			if d[k] < 0 {
				below += ranks[k]
			}
		}
		i = j
	}
	w := min(below, sum-below)
	if len(d) <= exactPairs {
		return math.Min(1, 2*signedRanks(ranks, w)), nil
	}
	z := (float64(w) + 1 - float64(sum)/2) / math.Sqrt(float64(squares)/4) // by 1, half a rank, because the sums are discrete
	return math.Min(1, 2*distuv.UnitNormal.CDF(z)), nil
}

func compare(x, y float64) int {
	switch {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

// signedRanks returns the share of all choices of ranks whose sum is at most w.
func signedRanks(ranks []int, w int) float64 {
	share := make([]float64, w+1) // share of the choices so far, by their sum
	share[0] = 1
	for _, r := range ranks {
		for s := w; s >= 0; s-- {
			share[s] /= 2
			if s >= r {
				share[s] += share[s-r] / 2
			}
		}
	}
	total := 0.0
	for _, v := range share {
		total += v
	}
	return total
}

// Trend returns the chance that samples rise or fall as steadily as these although their order
// is random, by Mann and Kendall's test (1945).
func Trend(samples []float64) float64 {
	n := len(samples)
	s, alike := 0, map[float64]int{}
	for i, v := range samples {
		alike[v]++
		for _, w := range samples[i+1:] {
			s += compare(w, v)
		}
	}
	weight := func(k int) float64 { return float64(k) * float64(k-1) * float64(2*k+5) }
	variance := weight(n)
	for _, k := range alike {
		variance -= weight(k)
	}
	if variance <= 0 {
		return 1
	}
	z := math.Max(0, math.Abs(float64(s))-1) / math.Sqrt(variance/18)
	return math.Min(1, 2*distuv.UnitNormal.CDF(-z))
}
