// Package timeslice decides how long a guest's processors run before others of its host do: by its class, and in the
// adaptive form also by its history. A guest that computes gets a longer slice and one that waits for messages a shorter one,
// each for a trial, and keeps it only if it then fares better.
//
// It is pure, and does not know how a slice is set or how guests fare is found out: on Linux, or for all guests of a Xen host
// at once. Its tests enumerate the table of states, and play made-up histories.
package timeslice

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"pagurus/fleet"
)

// The slices that are usual with the adaptive form: on Linux as long as its own on many processors, with which classes keep
// their shares, and Xen's own.
const (
	LinuxUsual = 3 * time.Millisecond
	XenUsual   = 30 * time.Millisecond
)

// Every is how long a period is: how guests fared is looked at once in each.
const Every = 5 * time.Second

// factor is by how much a tried slice is longer or shorter than the usual one. A factor of ten, 30 ms in place of 3, costs classes their shares.
const factor = 3

const (
	window    = 3              // periods by which a guest is judged
	longTrial = 4 * window     // periods after which a trial in which the guest hardly ran has failed
	firstRest = 12             // periods until the next trial after one that failed, doubled each time
	mostRest  = 64 * firstRest // an hour
)

// Policy is what a host's administrator wants.
type Policy struct {
	Base     time.Duration // of class normal; 0: the scheduler's own slice for all
	Adaptive bool
	One      bool // the host's scheduler has one slice for all guests
}

// priority is a class's part of the base, within 30 percent.
var priority = map[fleet.Class]float64{fleet.Gold: 1.3, "": 1, fleet.Normal: 1, fleet.Bronze: 0.7}

// Guest is a running guest.
type Guest struct {
	Class  fleet.Class
	CPUs   int
	Asked  bool // its job has a class or a ceiling
	Counts Counts
}

// Counts is how a guest's processors fared since some time; only differences count.
type Counts struct {
	Ran       time.Duration
	Waited    time.Duration // to run, though others ran
	Slept     uint64        // how often one gave up its processor by itself
	Preempted uint64        // how often one was displaced
	Whole     bool          // all four are known, and not Ran alone
}

// Given is a guest's slice.
type Given struct {
	Length time.Duration // 0: the scheduler's own
	Why    string        // for people
}

// Usual is a guest's slice by its class alone.
func (p Policy) Usual(g Guest) Given {
	switch {
	case p.Base == 0, !p.Adaptive && !p.One && !g.Asked:
		return Given{Why: "the scheduler's own"}
	case p.One:
		return Given{p.Base, "the usual one of all guests of the host"}
	}
	part := priority[g.Class]
	if part == 0 { // of a newer controller
		part = 1
	}
	return Given{time.Duration(float64(p.Base) * part), "the usual one of " + named(g.Class)}
}

func named(c fleet.Class) string {
	if c == "" {
		return "guests without a class"
	}
	return "class " + string(c)
}

// Tracker knows the guests of a host in the adaptive form. The zero value knows none; set Policy first.
type Tracker struct {
	Policy Policy
	guests map[fleet.GuestID]*tracked
	were   []fleet.GuestID // the guests of the last period
}

// tracked is a guest with its history.
type tracked struct {
	stage  stage
	kind   kind
	last   Counts
	at     time.Time
	usual  Given
	seen   []period // of the stage, that count; the last window of them
	judged []kind   // of the last window of periods that count
	before fare     // in the window before the trial
	stayed int      // periods in this stage
	rest   int      // periods that the next rest takes
}

// all names what stands for all guests where they have one slice.
const all fleet.GuestID = ""

// Step judges the period that ends now, and gives each guest its slice from now on.
func (t *Tracker) Step(now time.Time, guests map[fleet.GuestID]Guest) map[fleet.GuestID]Given {
	if t.guests == nil {
		t.guests = map[fleet.GuestID]*tracked{}
	}
	out := make(map[fleet.GuestID]Given, len(guests))
	if !t.Policy.Adaptive || t.Policy.Base == 0 {
		for id, g := range guests {
			out[id] = t.Policy.Usual(g)
		}
		return out
	}
	subjects := guests
	if t.Policy.One && len(guests) > 0 {
		subjects = map[fleet.GuestID]Guest{all: together(guests)}
	}
	maps.DeleteFunc(t.guests, func(id fleet.GuestID, _ *tracked) bool { _, here := subjects[id]; return !here })
	fared := map[fleet.GuestID]period{}
	for id, g := range subjects {
		if p, whole := t.noteCounts(id, g, now); whole {
			fared[id] = p
		}
	}
	are := slices.Sorted(maps.Keys(guests))
	if !slices.Equal(are, t.were) {
		delete(fared, all) // one that joins has counted before it did
	}
	t.were = are
	busy := slices.ContainsFunc(slices.Collect(maps.Values(t.guests)), func(is *tracked) bool { return is.stage == trying })
	for _, id := range slices.Sorted(maps.Keys(fared)) { // one guest tries at a time, or they disturb each other
		is, p := t.guests[id], fared[id]
		for other, o := range fared {
			if other != id {
				p.others.ran, p.others.waited = p.others.ran+o.ran, p.others.waited+o.waited
			}
		}
		was := is.stage
		is.judge(p, busy)
		busy = busy && was != trying || is.stage == trying
	}
	for id := range guests {
		if t.Policy.One {
			id = all
		}
		out[id] = t.guests[id].given()
	}
	if t.Policy.One {
		one := out[all]
		delete(out, all)
		for id := range guests {
			out[id] = one
		}
	}
	return out
}

// together is what stands for all guests.
func together(guests map[fleet.GuestID]Guest) (sum Guest) {
	sum.Counts.Whole = true
	for _, g := range guests {
		sum.CPUs += max(1, g.CPUs)
		c := &sum.Counts
		c.Ran, c.Waited, c.Slept, c.Preempted = c.Ran+g.Counts.Ran, c.Waited+g.Counts.Waited, c.Slept+g.Counts.Slept, c.Preempted+g.Counts.Preempted
		c.Whole = c.Whole && g.Counts.Whole
	}
	return sum
}

// noteCounts takes what a guest has counted. false: there is no period yet, as at the first look and where it counts from its beginning.
func (t *Tracker) noteCounts(id fleet.GuestID, g Guest, now time.Time) (period, bool) {
	is, known := t.guests[id]
	if !known {
		is = &tracked{rest: firstRest}
		t.guests[id] = is
	}
	was, at := is.last, is.at
	is.last, is.at, is.usual = g.Counts, now, t.Policy.Usual(g)
	took := now.Sub(at)
	if c := g.Counts; !known || took <= 0 || c.Ran < was.Ran || c.Waited < was.Waited || c.Slept < was.Slept || c.Preempted < was.Preempted || c.Whole != was.Whole {
		return period{}, false
	}
	p := period{
		took: time.Duration(max(1, g.CPUs)) * took, whole: g.Counts.Whole, slept: g.Counts.Slept - was.Slept, preempted: g.Counts.Preempted - was.Preempted,
	}
	p.ran, p.waited = g.Counts.Ran-was.Ran, g.Counts.Waited-was.Waited
	return p, true
}

// given is a guest's slice in its stage.
func (g *tracked) given() Given {
	if !g.stage.tries() {
		out := g.usual
		switch {
		case g.stage == resting:
			out.Why += fmt.Sprintf(": a %s one was tried, because it %s, and measured no better", g.kind.slice(), g.kind)
		case g.kind == unknown:
			out.Why += ", until it is known what the guest does"
		case g.kind == mixed:
			out.Why += ": the guest neither computes alone nor mostly waits"
		default:
			out.Why += fmt.Sprintf("; it %s", g.kind)
		}
		return out
	}
	length, why := g.usual.Length*factor, "it %s, and a longer slice "
	if g.kind == latencyBound {
		length, why = g.usual.Length/factor, "it %s, and a shorter slice "
	}
	if g.stage == trying {
		return Given{length, fmt.Sprintf(why+"is being tried", g.kind)}
	}
	return Given{length, fmt.Sprintf(why+"measured better", g.kind)}
}
