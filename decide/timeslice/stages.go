package timeslice

import (
	"slices"
	"time"
)

// stage is where a guest is between its usual slice and another one.
type stage int

const (
	watching stage = iota // with the usual slice: what it does is found out, and how it fares
	trying                // with another one
	kept                  // the other one measured better
	resting               // it did not, and the usual one is back
	stages
)

// tries reports whether a guest in this stage has another slice than its usual one.
func (s stage) tries() bool { return s == trying || s == kept }

// event is what a period says of a guest.
type event int

const (
	nothing event = iota
	changed       // it does something else now
	ready         // what it does and how it fares is known, it could fare better, and no other guest of the host tries
	better        // it has fared better than before the trial, and others no worse
	worse         // it has not, or no longer does
	rested
	events
)

// next is the table: in each stage, what follows from each event; what is missing cannot happen there.
var next = map[stage]map[event]stage{
	watching: {nothing: watching, changed: watching, ready: trying},
	trying:   {nothing: trying, changed: watching, better: kept, worse: resting},
	kept:     {nothing: kept, changed: watching, worse: resting},
	resting:  {nothing: resting, changed: watching, rested: watching},
}

// kind is what a guest does.
type kind int

const (
	unknown kind = iota
	mixed
	cpuBound
	latencyBound
)

func (k kind) String() string {
	switch k {
	case cpuBound:
		return "computes"
	case latencyBound:
		return "mostly waits, and then wants to run at once"
	}
	return "does both"
}

// slice says which slice is tried.
func (k kind) slice() string {
	if k == latencyBound {
		return "shorter"
	}
	return "longer"
}

// period is how a guest fared in one period, and all others of its host together.
type period struct {
	took             time.Duration // of all its processors
	ran, waited      time.Duration
	slept, preempted uint64
	whole            bool // all of these are known, and not ran alone
	others           struct{ ran, waited time.Duration }
}

// What a guest does.
const (
	idleShare    = 0.02 // a guest that runs less says nothing in this period
	busyShare    = 0.7  // a guest that wants to run for more, and
	fewSleeps    = 50   // gives up its processor less often in each second that it runs, computes
	manySleeps   = 200  // one that does so more often waits
	waitingShare = 0.5  // as one does that runs for less, if no more is known
)

// does says what a guest did in a period; unknown: it hardly ran.
func (p period) does() kind {
	ran, took := p.ran.Seconds(), p.took.Seconds()
	wants := (p.ran + p.waited).Seconds() / took
	switch {
	case ran < idleShare*took:
		return unknown
	case !p.whole && wants >= busyShare, p.whole && wants >= busyShare && float64(p.slept) < fewSleeps*ran:
		return cpuBound
	case !p.whole && wants <= waitingShare, p.whole && float64(p.slept) >= manySleeps*ran:
		return latencyBound
	}
	return mixed
}

// fare is how a guest fared in some periods: less is better.
type fare struct {
	cost   float64 // what its slice is to make less
	waits  float64 // seconds that it waited for each in which it ran
	others float64 // the same of the other guests
	whole  bool
}

// The measures. A guest that waits is to wait less until it runs: the measure is the time that it waited to run for each second
// that it ran. One that computes is to be displaced less often, for each second that it ran, and to wait no longer for that. If
// no more is known than how long guests ran, they are to run for a larger part of the time.
func measured(k kind, of []period) fare {
	var p period
	whole := true
	for _, one := range of {
		p.took, p.ran, p.waited, p.preempted = p.took+one.took, p.ran+one.ran, p.waited+one.waited, p.preempted+one.preempted
		p.others.ran, p.others.waited = p.others.ran+one.others.ran, p.others.waited+one.others.waited
		whole = whole && one.whole
	}
	ran := max(p.ran.Seconds(), 1e-9)
	f := fare{whole: whole, waits: p.waited.Seconds() / ran, others: p.others.waited.Seconds() / max(p.others.ran.Seconds(), 1e-9)}
	switch {
	case !whole:
		f.cost = p.took.Seconds() / ran
	case k == latencyBound:
		f.cost = f.waits
	default:
		f.cost = float64(p.preempted) / ran
	}
	return f
}

const (
	gain       = 0.9  // of the former cost: what is better
	plainGain  = 0.95 // the same, if no more is known than how long guests ran
	harm       = 1.1  // of the former waits: what is worse
	negligible = 0.01 // waits that are too short to matter, in seconds for each that is run
	rarely     = 1.0  // displacements in a second that are too few to matter
)

// improvable reports whether another slice could make a difference.
func (f fare) improvable(k kind) bool {
	return !f.whole || k == latencyBound && f.cost > negligible || k == cpuBound && f.cost > rarely
}

// beats reports whether a guest fares better than before, and nobody waits longer for that.
func (f fare) beats(before fare) bool {
	most := gain
	if !f.whole {
		most = plainGain
	}
	return f.cost <= most*before.cost && f.waits <= harm*max(before.waits, negligible) && f.others <= harm*max(before.others, negligible)
}

// lost reports whether what a kept slice had gained is gone. Between this and beats nothing changes.
func (f fare) lost(before fare) bool { return f.cost > before.cost }

// judge takes one period.
func (g *tracked) judge(p period, busy bool) {
	g.stayed++
	does := p.does()
	if does != unknown {
		g.seen, g.judged = lastOf(append(g.seen, p)), append(g.judged, does)
		g.judged = g.judged[max(0, len(g.judged)-window):]
	}
	e := g.event(busy)
	to := next[g.stage][e]
	switch {
	case e == changed:
		g.kind, g.rest = g.judged[0], firstRest
	case e == ready:
		g.before = measured(g.kind, g.seen)
	}
	if to == g.stage && e != changed {
		return
	}
	g.stage, g.seen, g.stayed = to, nil, 0
	if e == worse {
		g.stayed, g.rest = -g.rest, min(2*g.rest, mostRest) // it rests until stayed is 0
	}
}

// lastOf are the last window of periods, in memory of their own.
func lastOf(all []period) []period { return slices.Clone(all[max(0, len(all)-window):]) }

// event says what the periods so far mean in the guest's stage.
func (g *tracked) event(busy bool) event {
	same := len(g.judged) == window && !slices.ContainsFunc(g.judged, func(k kind) bool { return k != g.judged[0] })
	if same && g.judged[0] != g.kind {
		return changed
	}
	enough := len(g.seen) == window
	switch g.stage {
	case watching:
		if enough && !busy && (g.kind == cpuBound || g.kind == latencyBound) && measured(g.kind, g.seen).improvable(g.kind) {
			return ready
		}
	case trying:
		switch {
		case enough && measured(g.kind, g.seen).beats(g.before):
			return better
		case enough, g.stayed >= longTrial:
			return worse
		}
	case kept:
		if enough && measured(g.kind, g.seen).lost(g.before) {
			return worse
		}
	case resting:
		if g.stayed >= 0 {
			return rested
		}
	}
	return nothing
}
