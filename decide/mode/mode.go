// Package mode says how well what was predicted of guests that move in one mode keeps
// to what is allowed, in words for people.
//
// It must not know how it was predicted, nor choose. Its tests are tables; that it
// leads to a choice is shown by the planner's.
package mode

import (
	"fmt"
	"slices"
	"time"

	"pagurus/decide/words"
	"pagurus/fleet"
)

// Short says which of the guests fall short of the limits, and how; empty: none.
func Short(of []fleet.Prediction, l fleet.Limits) (amiss string, who int) {
	for i, p := range of {
		switch {
		case !p.Converges:
			return "would not converge: " + p.Why, i
		case l.Deadline > 0 && p.Ready > l.Deadline:
			return fmt.Sprintf("would be ready in %s, which is after the deadline of %s", words.About(p.Ready), l.Deadline), i
		case l.Downtime > 0 && p.Mapping > l.Downtime:
			return mapped(p, l.Downtime), i
		}
	}
	return "", 0
}

// mapped says that a guest's mappings alone take longer than it may stand still.
func mapped(p fleet.Prediction, allowed time.Duration) string {
	how := "its memory mappings"
	if p.Profile != nil {
		how = fmt.Sprintf("its %d memory mappings", p.Profile.Mappings)
	}
	return fmt.Sprintf("would stand still for %s for %s alone, where %s is allowed: give --max-stall more than that", words.About(p.Mapping), how, allowed)
}

// Standing says how long the guests stand still. What is left to send is within the
// limits; to stop and go on takes its time besides, by any mode.
func Standing(of []fleet.Prediction, l fleet.Limits) string {
	still := Stillest(of)
	if l.Downtime <= 0 || still <= l.Downtime {
		return words.About(still).String()
	}
	return fmt.Sprintf("%s: what is left to send takes no more than the %s allowed, and no mode spares it the rest", words.About(still), l.Downtime)
}

// Stillest is the longest that one of them stands still.
func Stillest(of []fleet.Prediction) time.Duration {
	var most time.Duration
	for _, p := range of {
		most = max(most, p.Downtime.Value)
	}
	return most
}

// Latest is when the last of them is ready.
func Latest(of []fleet.Prediction) time.Duration {
	var most time.Duration
	for _, p := range of {
		most = max(most, p.Ready)
	}
	return most
}

// Help says what somebody can do whose guest would not be ready.
func Help(p fleet.Prediction, still time.Duration, late bool) string {
	out := ""
	if p.Help != "" {
		out = fmt.Sprintf("; it would with %s", p.Help)
	}
	if !late {
		out += "; no host with room takes in guests by post-copy, pagurus doctor --fix there may mend that"
	}
	return out + fmt.Sprintf("; --mode %s would have it stand still for about %s, --mode %s tries all the same", fleet.StopAndCopy, words.About(still), fleet.PreCopy)
}

// Huge reports whether one of some guests is to have huge pages. By post-copy they have
// to be of one size at both hosts, and what the target will give is its own matter:
// nobody takes post-copy for such a guest who is not told to.
func Huge(jobs map[fleet.JobID]fleet.Job, guests []fleet.Guest) bool {
	return slices.ContainsFunc(guests, func(g fleet.Guest) bool { return jobs[g.Job].Spec.Tune.Huge })
}
