// Package mode says how well what was predicted of guests that move in one mode keeps
// to what is allowed, in words for people.
//
// It must not know how it was predicted, nor choose. Its tests are tables; that it
// leads to a choice is shown by the planner's.
package mode

import (
	"fmt"
	"time"

	"pagurus/decide/words"
	"pagurus/fleet"
)

// trifle is how long sending may take for which nobody copies beforehand: to begin a
// copy takes as long.
const trifle = 30 * time.Millisecond

// Trifling reports whether all that guests have, so many bytes, is sent while they
// stand still sooner than a copy beforehand is begun, and says so, for people. It is
// not where the link is only guessed, or somebody says how long they may stand still:
// pre-copy goes by what the link gives in fact.
func Trifling(of []fleet.Prediction, bytes int64, l fleet.Limits) (why string, is bool) {
	for _, p := range of {
		takes := time.Duration(float64(bytes) / p.LinkBytesPerSecond * float64(time.Second))
		if bytes <= 0 || p.LinkGuessed || !(p.LinkBytesPerSecond > 0) || takes > trifle || l.Downtime > 0 {
			return "", false
		}
		why = fmt.Sprintf("all there is, %.1f MiB, is expected to be sent in %s; to begin a copy beforehand takes as long", float64(bytes)/(1<<20), words.About(takes))
	}
	return why, why != ""
}

// Short says which of the guests fall short of the limits, and how; empty: none.
func Short(of []fleet.Prediction, l fleet.Limits) (amiss string, who int) {
	for i, p := range of {
		switch {
		case !p.Converges:
			return "would not converge: " + p.Why, i
		case l.Deadline > 0 && p.Ready > l.Deadline:
			return fmt.Sprintf("would be ready in %s, which is after the deadline of %s", words.About(p.Ready), l.Deadline), i
		}
	}
	return "", 0
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
