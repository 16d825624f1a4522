package sim

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"pagurus/decide/owners"
)

// Comings defines when owners come and go.
type Comings interface {
	// Of returns the visits of host i's owner. All randomness comes from chance. The
	// owner is away at first, at any time.
	Of(i int, chance *rand.Rand) Visits
}

// Visits are one owner's comings and goings.
type Visits interface {
	// Next returns when the owner comes or goes, and the share of the machine's CPUs that
	// they use from then on; false: never again. Times only grow, and may be before the
	// run begins.
	Next() (at time.Duration, load float64, more bool)
}

// Model is a published model of machines' availability: how long they are up, which is
// without their owner, and down. The fits are those of Javadi, Kondo and others to the
// Failure Trace Archive.
type Model struct {
	Name     string
	Up, Down Draw
	Daily    bool // owners come at working hours: see daily
}

// Draw draws durations.
type Draw interface {
	Draw(*rand.Rand) time.Duration
	Mean() time.Duration
}

// Weibull draws from the distribution that policies use.
type Weibull owners.Fit

// Draw draws a duration.
func (w Weibull) Draw(r *rand.Rand) time.Duration { return owners.Fit(w).At(r.Float64()) }

// Mean is the average duration.
func (w Weibull) Mean() time.Duration { return owners.Fit(w).Mean() }

// LogNormal draws hours with a normally distributed logarithm.
type LogNormal struct{ Mu, Sigma float64 }

// Draw draws a duration.
func (l LogNormal) Draw(r *rand.Rand) time.Duration {
	return inHours(math.Exp(l.Mu + l.Sigma*r.NormFloat64()))
}

// Mean is the average duration.
func (l LogNormal) Mean() time.Duration { return inHours(math.Exp(l.Mu + l.Sigma*l.Sigma/2)) }

func inHours(h float64) time.Duration {
	return time.Duration(min(h, 1e5) * float64(time.Hour)) // eleven years exceed any run
}

var models = map[string]Model{
	"nd07cpu":               {Up: Weibull{0.45, 4.16}, Down: Weibull{0.51, 0.74}},
	"microsoft99":           {Up: Weibull{0.55, 35.30}, Down: Weibull{0.60, 9.34}},
	"overnet03":             {Up: Weibull{0.85, 2.04}, Down: Weibull{0.44, 2.98}},
	"skype06":               {Up: Weibull{0.64, 10.86}, Down: Weibull{0.63, 9.48}},
	"pl05":                  {Up: Weibull{0.33, 19.35}, Down: Weibull{0.36, 5.59}},
	"g5k06":                 {Up: Weibull{0.48, 14.37}, Down: Weibull{0.35, 0.47}},
	"lanl05":                {Up: Weibull{0.48, 816.60}, Down: Weibull{0.58, 2.18}},
	"nd07cpu-lognormal":     {Up: LogNormal{0.30, 2.20}, Down: LogNormal{-1.02, 1.27}},
	"microsoft99-lognormal": {Up: LogNormal{2.62, 1.84}, Down: LogNormal{1.42, 1.54}},
}

// Named returns a published model, ignoring the case of its name. The suffix "-daily"
// adds a daily cycle.
func Named(name string) (Model, error) {
	plain, daily := strings.CutSuffix(strings.ToLower(name), "-daily")
	m, known := models[plain]
	if !known {
		return m, fmt.Errorf("there is no model %q of when owners come: use one of %s, with -daily at its end for a daily cycle", name, strings.Join(slices.Sorted(maps.Keys(models)), ", "))
	}
	m.Name, m.Daily = name, daily
	return m, nil
}

// Of returns one owner's visits. They began so long ago that the start has no effect.
func (m Model) Of(_ int, chance *rand.Rand) Visits {
	const cycles = 10
	ago := time.Duration(cycles * (1 + chance.Float64()) * float64(m.Up.Mean()+m.Down.Mean()))
	return &visits{model: m, chance: chance, at: -ago}
}

type visits struct {
	model  Model
	chance *rand.Rand
	at     time.Duration
	there  bool
}

// Next draws the next change. The minimum is a second, as in the data.
func (v *visits) Next() (time.Duration, float64, bool) {
	if v.at > longest {
		return 0, 0, false
	}
	if v.there = !v.there; v.there {
		up := max(v.model.Up.Draw(v.chance), time.Second)
		if v.model.Daily {
			v.at = daily(v.at, up)
		} else {
			v.at += up
		}
		return v.at, 0.2 + 0.8*v.chance.Float64(), true
	}
	v.at += max(v.model.Down.Draw(v.chance), time.Second)
	return v.at, 0, true
}

// daily returns when an owner's absence ends if owners come three times as often by day
// as at night and at weekends, and over a week as often as without a cycle.
func daily(from, away time.Duration) time.Duration {
	const day, busy, idle = 3.0, 45.0, 168.0 - 45 // nine hours on five days
	night := (busy + idle) / (day*busy + idle)
	left := away.Hours()
	for {
		hour := ((int(math.Floor(from.Hours())) % 168) + 168) % 168
		pace := night
		if hour/24 < 5 && hour%24 >= 9 && hour%24 < 18 {
			pace = night * day
		}
		next := time.Duration(math.Floor(from.Hours())+1) * time.Hour
		if gone := (next - from).Hours() * pace; gone < left {
			from, left = next, left-gone
			continue
		}
		return from + time.Duration(left/pace*float64(time.Hour))
	}
}
