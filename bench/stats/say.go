package stats

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
)

// fewRuns is below how many samples an interval rests on the assumption that
// they are normal rather than on themselves.
const fewRuns = 10

// The limits of what is doubtful. Of good samples about one in a hundred is.
const (
	trendChance = 0.01
	// apart is how far apart, in their own deviations (Ashman's D), the halves
	// of a sample have to be to be two samples. The halves of a uniform one are
	// 3.5 apart, those of a normal one 2.7; of few samples more by chance, which
	// apartFew grants, divided by how many they are.
	apart    = 5
	apartFew = 40
	// leastHalf is the least share of a sample that counts as one of two.
	leastHalf = 0.2
	// leastModes is of how many samples two heaps can be told from chance.
	leastModes = 12
)

// Doubts says, for people, what is wrong with samples in the order they were
// taken: too few, drifting, or of two kinds. There is nothing to say of good
// ones.
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

// modes splits samples in two where the halves are the most alike inside, and
// says whether they are two.
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

// Sense is what it means that a figure is greater.
type Sense string

// The senses of figures.
const (
	Slower Sense = "slower" // it is a time: more is worse
	Faster Sense = "faster" // it is a rate: more is better
)

// Sentence says in plain words how one stands beside another, from the ratio of
// their figures.
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
