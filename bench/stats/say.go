package stats

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
)

// fewRuns is the number of samples below which an interval depends more on the assumption of
// normality than on the samples.
const fewRuns = 10

// The limits for doubts. About one in a hundred good samples is doubted.
const (
	trendChance = 0.01
	// apart is how far apart the halves of a sample must be to count as two samples, in their
	// own deviations (Ashman's D). The halves of a uniform sample are 3.5 apart, those of a
	// normal one 2.7. With few samples they are further apart by chance. apartFew, divided by
	// the number of samples, allows for that.
	apart    = 5
	apartFew = 40
	// leastHalf is the least share of samples that counts as one of two kinds.
	leastHalf = 0.2
	// leastModes is the least number of samples in which two kinds can be distinguished from
	// chance.
	leastModes = 12
)

// Doubts says, for people, what is wrong with samples in the order in which they were taken: too
// few, drifting, or of two kinds. It returns nothing for good samples.
func Doubts(samples []float64) (doubts []string) {
	n := len(samples)
	if n < fewRuns {
		doubts = append(doubts, fmt.Sprintf("too few runs: %d; take at least %d before you believe the interval", n, fewRuns))
	}
	if n >= 5 {
		if p := Trend(samples); p < trendChance {
			half := n / 2
			change := stat.Mean(samples[n-half:], nil)/stat.Mean(samples[:half], nil) - 1
			doubts = append(doubts, fmt.Sprintf("drift: the later half is %+.1f %% off the earlier one, and not by chance (p = %.2g)", 100*change, p))
		}
	}
	if low, high, two := modes(samples); two {
		doubts = append(doubts, fmt.Sprintf("two kinds of runs: some around %.4g, others around %.4g; a mean says little of either", low, high))
	}
	return doubts
}

// modes splits samples where the two parts are most uniform, and reports whether they are two
// kinds.
func modes(samples []float64) (low, high float64, two bool) {
	n := len(samples)
	if n < leastModes {
		return 0, 0, false
	}
	s := slices.Sorted(slices.Values(samples))
	least, best := math.Inf(1), 0.0
	for k := 2; k <= n-2; k++ {
		lowMean, lowVar := stat.PopMeanVariance(s[:k], nil)
		highMean, highVar := stat.PopMeanVariance(s[k:], nil)
		if within := lowVar*float64(k) + highVar*float64(n-k); within < least {
			least, low, high = within, lowMean, highMean
			best = math.Inf(1)
			if lowVar+highVar > 0 {
				best = math.Sqrt2 * (highMean - lowMean) / math.Sqrt(lowVar+highVar)
			}
			two = float64(min(k, n-k)) >= leastHalf*float64(n) && highMean > lowMean
		}
	}
	return low, high, two && best > apart+apartFew/float64(n)
}

// Sense says what a greater figure means.
type Sense string

// The senses of figures.
const (
	Slower Sense = "slower" // it is a time: more is worse
	Faster Sense = "faster" // it is a rate: more is better
)

// Sentence compares one with other in plain words, given the ratio of their figures.
func Sentence(one, other string, ratio Interval, sense Sense) string {
	percent := func(v float64) float64 { return 100 * (v - 1) }
	v, low, high := percent(ratio.Value), percent(ratio.Low), percent(ratio.High)
	word := sense
	if v < 0 {
		v, low, high = -v, -high, -low
		word = map[Sense]Sense{Slower: Faster, Faster: Slower}[sense]
	}
	sure := fmt.Sprintf("(%.0f %%: %.1f to %.1f %%), %d runs each", 100*ratio.Confidence, low, high, ratio.Samples)
	if low <= 0 {
		return fmt.Sprintf("%s and %s cannot be told apart: %s is %.1f %% %s %s", one, other, one, v, word, sure)
	}
	return fmt.Sprintf("%s is %.1f %% %s than %s %s", one, v, word, other, sure)
}
