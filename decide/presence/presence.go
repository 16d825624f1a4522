// Package presence tells from what a host's sensors see whether its owner is
// there: a small state machine, one table, with hysteresis and grace times as
// settings.
//
// It is pure: what time it is comes in with each sample, as a time that only
// ever goes forward; the wall clock counts for the hours of the day and nothing
// else, so a clock that jumps makes nobody come or go. It must not know what
// becomes of guests. Its tests enumerate the table and let owners come and go
// in all the ways that hurt.
package presence

import (
	"fmt"
	"strings"
	"time"

	"pagurus/fleet"
)

// event is what leads from one state to the next.
type event string

const (
	seen    event = "seen"    // there is a sign of the owner
	insists event = "insists" // there is one that leaves no doubt
	stayed  event = "stayed"  // there were signs for Grace
	noSign  event = "no sign" // there was no sign for LeavingAfter
	gone    event = "gone"    // there was no sign for IdleAfter
	freed   event = "freed"   // the owner says so by hand
)

// arrow is one line of the table. Of those that fit the first counts.
type arrow struct {
	from fleet.OwnerState
	on   event
	to   fleet.OwnerState
}

var arrows = []arrow{
	{fleet.OwnerAbsent, insists, fleet.OwnerPresent},
	{fleet.OwnerAbsent, seen, fleet.OwnerReturning},
	{fleet.OwnerReturning, freed, fleet.OwnerAbsent},
	{fleet.OwnerReturning, insists, fleet.OwnerPresent},
	{fleet.OwnerReturning, noSign, fleet.OwnerAbsent},
	{fleet.OwnerReturning, stayed, fleet.OwnerPresent},
	{fleet.OwnerPresent, freed, fleet.OwnerAbsent},
	{fleet.OwnerPresent, noSign, fleet.OwnerLeaving},
	{fleet.OwnerLeaving, freed, fleet.OwnerAbsent},
	{fleet.OwnerLeaving, insists, fleet.OwnerPresent},
	{fleet.OwnerLeaving, seen, fleet.OwnerPresent},
	{fleet.OwnerLeaving, gone, fleet.OwnerAbsent},
}

// Moment is one sample and when it was taken.
type Moment struct {
	At     time.Duration // since any moment; never goes back
	Clock  time.Time     // the host's wall clock, for the hours
	CPUs   int           // of the host
	Sample fleet.OwnerSample
}

// Watch is what is remembered from one sample to the next. The zero Watch
// knows nothing.
type Watch struct {
	in       fleet.OwnerState
	present  time.Duration // when it last changed whether guests have to give way
	entered  time.Duration
	lastSign time.Duration
	busy     bool          // others use more than they should, by the hysteresis
	busyFrom time.Duration // since when
	claimed  bool          // as of the last sample
	deafTo   time.Duration // input until then is that of the owner saying they go
	why      string
	load     float64
	deaf     []string
}

// Next gives what is so after one more sample.
func Next(w Watch, p fleet.OwnerPolicy, m Moment) Watch {
	s := Of(p)
	if m.Sample.NonGuestCPUs != nil {
		w.load = *m.Sample.NonGuestCPUs
	}
	w.deaf = m.Sample.Deaf
	if !p.Owned && !p.Claimed {
		return Watch{load: w.load, deaf: w.deaf, claimed: false}
	}
	if w.in == "" {
		// Nobody knows yet who was here a minute ago; an agent that is started
		// again must not send guests to an owner who is reading. Input that is
		// old enough tells otherwise at once.
		w = Watch{in: fleet.OwnerLeaving, load: w.load, deaf: w.deaf, entered: m.At, present: m.At, lastSign: m.At}
		if idle := m.Sample.Idle; idle != nil {
			w.lastSign = m.At - *idle
		}
	}
	let := w.claimed && !p.Claimed
	w.claimed = p.Claimed
	if let {
		w.deafTo = m.At
	}
	signs := w.findSigns(s, p, m)
	on := w.events(s, m.At, signs, let)
	for _, a := range arrows {
		if a.from == w.in && on[a.on] {
			if a.to.There() != w.in.There() {
				w.present = m.At
			}
			w.in, w.entered = a.to, m.At
			break
		}
	}
	w.why = strings.Join(signs.words, ", ")
	return w
}

// events gives what is so at this moment, by the table's words.
func (w Watch) events(s Settings, at time.Duration, signs signs, let bool) map[event]bool {
	some := len(signs.words) > 0
	silence := at - w.lastSign
	return map[event]bool{
		freed:   let && !some,
		insists: signs.sure,
		seen:    some,
		stayed:  at-w.entered >= s.Grace,
		noSign:  !some && silence >= s.LeavingAfter,
		gone:    !some && silence >= s.IdleAfter,
	}
}

// Owner gives what is known, as a host tells it, at a moment of its clock.
func (w Watch) Owner(at time.Duration, clock time.Time) *fleet.Owner {
	o := &fleet.Owner{Present: w.in.There(), LoadCPUs: w.load, Why: w.why, State: w.in, Deaf: w.deaf, SaidAt: clock}
	if w.in == "" {
		return o
	}
	ago := func(t time.Duration) time.Time { return clock.Add(t - at) }
	o.Since, o.Entered, o.LastSign = ago(w.present), ago(w.entered), ago(w.lastSign)
	if !o.Present {
		// Long idle is long idle, whenever the agent began to look.
		o.Since = ago(min(w.present, w.lastSign))
	}
	return o
}

// signs are what tells of the owner at one moment.
type signs struct {
	words []string
	sure  bool // they leave no doubt
}

func (s *signs) add(format string, args ...any) {
	s.words = append(s.words, fmt.Sprintf(format, args...))
}

// findSigns finds the signs in a sample, and notes when the last was.
func (w *Watch) findSigns(s Settings, p fleet.OwnerPolicy, m Moment) signs {
	var out signs
	x := m.Sample
	if p.Claimed {
		out.add("claimed by hand")
	}
	if !p.Hours.Has(m.Clock) {
		out.add("outside of the hours agreed on")
	}
	for _, name := range x.Exclusive {
		out.add("%s runs", name)
	}
	out.sure = len(out.words) > 0
	if x.OnBattery && s.Battery {
		out.add("on battery")
	}
	inUse := w.input(&out, s, m)
	w.noteBusy(&out, s, m, inUse)
	if x.Available != nil && *x.Available < s.MemoryLeast {
		out.add("other programs leave %.0f %% of the memory", 100**x.Available)
	}
	// Where nobody else works it is guests who wait for what they were promised.
	if x.Starved != nil && *x.Starved > s.StarvedMost && x.NonGuestCPUs != nil && *x.NonGuestCPUs > s.IdleCPUs {
		out.add("all processes wait for memory %.0f %% of the time", 100**x.Starved)
	}
	switch {
	case len(out.words) == 1 && inUse:
		w.lastSign = max(w.lastSign, m.At-*x.Idle) // input was when it was, not when it was looked at
	case len(out.words) > 0:
		w.lastSign = m.At
	}
	return out
}

// input reports whether somebody is at the machine.
func (w *Watch) input(out *signs, s Settings, m Moment) bool {
	idle := m.Sample.Idle
	if idle == nil || *idle >= s.InputWithin || m.At-*idle <= w.deafTo && w.deafTo > 0 {
		return false
	}
	out.add("input %s ago", idle.Round(time.Second))
	return true
}

// noteBusy notes whether others' programs are at work. What is busy stays so until
// it is below a lower bound.
func (w *Watch) noteBusy(out *signs, s Settings, m Moment, inUse bool) {
	used := m.Sample.NonGuestCPUs
	if used == nil {
		w.busy = false
		return
	}
	most := s.BusyCPUs
	if share := s.BusyShare * float64(m.CPUs); share > 0 && inUse {
		most = share
	} else if share := s.BusyShareAway * float64(m.CPUs); share > 0 {
		most = share
	}
	least := min(s.IdleCPUs, most)
	if s.IdleCPUs == 0 {
		least = most
	}
	waits := m.Sample.Waiting != nil && *m.Sample.Waiting > s.WaitingMost && *used > least
	switch over := *used > most || waits; {
	case over && !w.busy:
		w.busy, w.busyFrom = true, m.At
	case !over && *used <= least:
		w.busy = false
	}
	if w.busy && m.At-w.busyFrom >= s.BusyFor {
		out.add("non-guest load is %.1f CPUs", *used)
	}
}
