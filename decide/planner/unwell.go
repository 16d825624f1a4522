// This file says what a host's health has to do with what happens to its guests.
//
// It decides nothing; package health does.

package planner

import (
	"fmt"
	"time"

	"pagurus/decide/health"
	"pagurus/decide/owners"
	"pagurus/decide/vacating"
	"pagurus/fleet"
)

// whyDraining says, for people, why a host is emptied.
func whyDraining(h fleet.Host) string {
	if why := health.Why(h); why != "" {
		return fmt.Sprintf("%s shows signs of failing: %s", h.ID, why)
	}
	if why := vacating.Why(h); why != "" {
		return fmt.Sprintf("%s goes away: %s", h.ID, why)
	}
	return owners.WhyVacating(h)
}

// losses explains how often a host was lost, and what follows from that.
func (e *explainer) losses(h fleet.Host) []string {
	recent := h.RecentLosses(e.s.At)
	if len(recent) == 0 {
		return nil
	}
	record := health.Record{}
	for _, other := range e.s.Hosts {
		record = record.Plus(health.RecordOf(&other, e.s.At))
	}
	times := "once"
	if n := len(recent); n > 1 {
		times = fmt.Sprintf("%d times", n)
	}
	ago := fleet.ShortDuration(max(e.s.At.Sub(recent[len(recent)-1]), 0).Round(time.Second))
	between := fleet.ShortDuration(health.Between(health.RecordOf(&h, e.s.At), record).Round(time.Minute))
	return []string{fmt.Sprintf("It was lost with what ran there %s in the last %d days, the last time %s ago. Checkpoints at intervals that the planner chooses are made as if it were lost each %s.",
		times, int(fleet.LossWindow/(24*time.Hour)), ago, between)}
}

// unwell explains a host's signs of failing.
func unwell(h fleet.Host) (out []string) {
	if h.Facts.Health == nil {
		return nil
	}
	for _, s := range h.Facts.Health.Signs {
		out = append(out, fmt.Sprintf("A sign that it may fail: %s.", s.Sentence()))
	}
	switch {
	case h.ForHealth:
		out = append(out, fmt.Sprintf("For these it is emptied until they are over; `pagurus undrain %s` has it take guests all the same.", h.ID))
	case h.Facts.Health.Grave(time.Time{}):
		out = append(out, "A person has had it take guests in spite of that, until a sign comes again.")
	}
	return out
}
