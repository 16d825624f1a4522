// This file compares the predictions for guests that move in one mode with the limits, in
// words for people.
//
// It neither predicts nor chooses. Its tests are tables; the planner's tests cover the
// resulting choice.

package planner

import (
	"fmt"
	"slices"
	"time"

	"pagurus/fleet"
)

// shortfall says which guests exceed the limits, and how; empty: none.
func shortfall(of []fleet.Prediction, l fleet.Limits) (amiss string, who int) {
	for i, p := range of {
		switch {
		case !p.Converges:
			return "would not converge: " + p.Why, i
		case l.Deadline > 0 && p.Ready > l.Deadline:
			return fmt.Sprintf("would be ready in %s, which is after the deadline of %s", aboutDuration(p.Ready), l.Deadline), i
		case l.Downtime > 0 && p.Mapping > l.Downtime:
			return mapped(p, l.Downtime), i
		}
	}
	return "", 0
}

// mapped says that a guest's mappings alone exceed its maximum downtime.
func mapped(p fleet.Prediction, allowed time.Duration) string {
	how := "its memory mappings"
	if p.Profile != nil {
		how = fmt.Sprintf("its %d memory mappings", p.Profile.Mappings)
	}
	return fmt.Sprintf("would have a downtime of %s for %s alone, where %s is allowed: give --"+fleet.MaxDowntimeFlag+" more than that", aboutDuration(p.Mapping), how, allowed)
}

// downtimeText gives the expected downtime. Sending the remaining pages is within the
// limits; suspending and resuming adds time in every mode.
func downtimeText(of []fleet.Prediction, l fleet.Limits) string {
	still := longestDowntime(of)
	if l.Downtime <= 0 || still <= l.Downtime {
		return aboutDuration(still).String()
	}
	return fmt.Sprintf("%s: sending the rest takes less than the %s allowed, but every mode has this downtime", aboutDuration(still), l.Downtime)
}

// longestDowntime is the longest downtime of the guests.
func longestDowntime(of []fleet.Prediction) time.Duration {
	var most time.Duration
	for _, p := range of {
		most = max(most, p.Downtime.Value)
	}
	return most
}

// latestReady is when the last guest is ready.
func latestReady(of []fleet.Prediction) time.Duration {
	var most time.Duration
	for _, p := range of {
		most = max(most, p.Ready)
	}
	return most
}

// helpToBeReady says what a user can do if a guest would not be ready.
func helpToBeReady(p fleet.Prediction, still time.Duration, late bool) string {
	out := ""
	if p.Help != "" {
		out = fmt.Sprintf("; it would with %s", p.Help)
	}
	if !late {
		out += "; no host with room can receive guests by post-copy; `pagurus doctor --fix` there may fix that"
	}
	return out + fmt.Sprintf("; --"+fleet.ModeFlag+" %s would mean a downtime of about %s, --"+fleet.ModeFlag+" %s tries all the same", fleet.StopAndCopy, aboutDuration(still), fleet.PreCopy)
}

// anyHuge reports whether a guest should have huge pages. Post-copy needs one page size
// on both hosts, and only the target knows what it will provide. So post-copy is used for
// such guests only on request.
func anyHuge(jobs map[fleet.JobID]fleet.Job, guests []fleet.Guest) bool {
	return slices.ContainsFunc(guests, func(g fleet.Guest) bool { return jobs[g.Job].Spec.Tune.Huge })
}
