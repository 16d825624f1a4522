package owners

import (
	"math"
	"time"
)

// Fit is a Weibull distribution of how long owners stay away, or are present. With a
// shape below 1, as in all published fits, the longer it has lasted, the longer it will.
type Fit struct {
	Shape float64 `json:"shape"`
	Hours float64 `json:"hours"` // the scale
}

// Hazard is the probability, for each hour, that it ends in the next moment after lasting
// for some time. Times below a second count as one second, because fits have no shorter
// data.
func (f Fit) Hazard(after time.Duration) float64 {
	t := math.Max(after.Hours(), 1.0/3600) / f.Hours
	return f.Shape / f.Hours * math.Pow(t, f.Shape-1)
}

// Lasts is the probability that it lasts longer than d.
func (f Fit) Lasts(d time.Duration) float64 {
	return math.Exp(-math.Pow(math.Max(d.Hours(), 0)/f.Hours, f.Shape))
}

// Within is the probability that it ends within d, after lasting for some time.
func (f Fit) Within(after, d time.Duration) float64 {
	lasts := func(d time.Duration) float64 { return math.Pow(math.Max(d.Hours(), 0)/f.Hours, f.Shape) }
	return -math.Expm1(lasts(after) - lasts(after+d))
}

// At is the time within which it ends with probability p.
func (f Fit) At(p float64) time.Duration {
	return hours(f.Hours * math.Pow(-math.Log1p(-p), 1/f.Shape))
}

// Mean is how long it lasts on average.
func (f Fit) Mean() time.Duration { return hours(f.Hours * math.Gamma(1+1/f.Shape)) }

// Left is how much longer it lasts on average, after lasting for some time.
func (f Fit) Left(after time.Duration) time.Duration {
	const parts = 64
	from, sum := math.Max(after.Hours(), 0), 0.0
	start := math.Pow(from/f.Hours, f.Shape)
	for i := range parts {
		u := (float64(i) + 0.5) / parts
		sum += f.Hours*math.Pow(start-math.Log1p(-u), 1/f.Shape) - from
	}
	return hours(sum / parts)
}

func hours(h float64) time.Duration {
	return time.Duration(math.Min(h*float64(time.Hour), math.MaxInt64/4))
}
