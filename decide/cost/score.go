package cost

import (
	"fmt"
	"math"
	"time"

	"pagurus/fleet"
)

// Score compares past predictions with their outcomes. It uses only predictions made
// before the moves.
func Score(past []fleet.Migration) fleet.Calibration {
	var c fleet.Calibration
	var total, downtime, sent fits
	for _, m := range past {
		p := m.Predicted
		if p == nil {
			continue
		}
		converged := m.Phase == fleet.Finished
		if m.Cost.SlowedPercent == 0 && (converged || gaveUp(m)) {
			c.Verdicts++
			if p.Converges == converged {
				c.Right++
			}
		}
		if !converged || !p.Converges || m.Cost.SentBytes <= 0 {
			continue
		}
		c.Moves++
		total.add(p.Total, Total(m)-waited(m))
		downtime.add(p.Downtime, m.Cost.Downtime)
		sent.add(fleet.Range[time.Duration]{Value: time.Duration(p.Bytes.Value), Low: time.Duration(p.Bytes.Low), High: time.Duration(p.Bytes.High)},
			time.Duration(m.Cost.SentBytes))
	}
	c.Total, c.Downtime, c.Bytes = total.fitness(), downtime.fitness(), sent.fitness()
	return c
}

// Teaches reports whether a migration's outcome is evidence for later ones: it arrived,
// or was cancelled because it did not converge.
func Teaches(m fleet.Migration) bool {
	return m.Phase == fleet.Finished || m.Predicted != nil && gaveUp(m)
}

// gaveUp reports whether a copy was cancelled after its maximum rounds.
func gaveUp(m fleet.Migration) bool {
	limit := m.Predicted.Limits.Rounds
	return m.Phase == fleet.Aborted && limit > 0 && m.Cost.Rounds >= limit
}

// fits collects ratios of outcomes to predictions for one quantity.
type fits struct {
	errors []float64
	biases []float64
	inside int
}

func (f *fits) add(said fleet.Range[time.Duration], got time.Duration) {
	if got <= 0 || said.Value <= 0 {
		return // not measured
	}
	f.errors = append(f.errors, math.Abs(float64(said.Value-got))/float64(got))
	f.biases = append(f.biases, float64(got)/float64(said.Value))
	if said.Low <= got && got <= said.High {
		f.inside++
	}
}

func (f *fits) fitness() fleet.Fitness {
	if len(f.errors) == 0 {
		return fleet.Fitness{}
	}
	return fleet.Fitness{MedianError: median(f.errors), Bias: median(f.biases), Coverage: float64(f.inside) / float64(len(f.errors))}
}

// stale is the age of a profile that deserves a warning: hosts sample more often unless a
// guest is moving.
const stale = 2 * time.Minute

// Reservations says, for people, why a prediction may be wrong.
func Reservations(at time.Time, m fleet.Migration) []string {
	p := m.Predicted.Profile
	switch {
	case p == nil:
		return []string{fmt.Sprintf("the memory of %s has not been sampled yet, so this is a guess; ask again in half a minute", m.Guest)}
	case at.Sub(p.At) > stale:
		return []string{fmt.Sprintf("%s was last sampled %s ago; hosts do not sample while a guest moves", m.Guest, at.Sub(p.At).Round(time.Second))}
	}
	return nil
}
