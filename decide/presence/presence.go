// Package presence decides from a host's sensors whether its owner is present: a small
// state machine in one table, with hysteresis and grace times as settings.
//
// It is pure: each sample has its time, from a clock that never goes back. The wall clock
// is used only for the hours of the day, so a clock that jumps changes no owner's state.
// It must not know what becomes of guests. Its tests enumerate the table, and let owners
// come and go in difficult ways.
package presence

import (
	"fmt"
	"strings"
	"time"

	"pagurus/fleet"
)

// event leads from one state to the next.
type event string

const (
	seen    event = "seen"    // a sign of the owner
	insists event = "insists" // a sign without doubt
	stayed  event = "stayed"  // signs for Grace
	noSign  event = "no sign" // no sign for LeavingAfter
	gone    event = "gone"    // no sign for IdleAfter
	freed   event = "freed"   // released by hand
)

// arrow is one line of the table. The first one that matches counts.
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

// Moment is one sample with its time.
type Moment struct {
	At     time.Duration // since any fixed time; never goes back
	Clock  time.Time     // the host's wall clock, for the hours
	CPUs   int           // of the host
	Sample fleet.OwnerSample
}

// Watch is the state between samples. The zero Watch knows nothing.
type Watch struct {
	in       fleet.OwnerState
	present  time.Duration // when guests last had to start or stop yielding
	entered  time.Duration
	lastSign time.Duration
	busy     bool          // others use too much CPU, with hysteresis
	busyFrom time.Duration // start of busy
	claimed  bool          // in the last sample
	deafTo   time.Duration // until then input counts as the owner's release
	why      string
	load     float64
	deaf     []string
}

// Next returns the state after one more sample.
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
		// It is unknown who was here before. A restarted agent must not give up guests
		// for an owner who is only reading. Old enough input settles it at once.
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

// events returns the present events of the table.
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

// Owner returns what is known for a report by the host, at a moment of its clock.
func (w Watch) Owner(at time.Duration, clock time.Time) *fleet.Owner {
	o := &fleet.Owner{Present: w.in.There(), LoadCPUs: w.load, Why: w.why, State: w.in, Deaf: w.deaf, SaidAt: clock}
	if w.in == "" {
		return o
	}
	ago := func(t time.Duration) time.Time { return clock.Add(t - at) }
	o.Since, o.Entered, o.LastSign = ago(w.present), ago(w.entered), ago(w.lastSign)
	if !o.Present {
		// The idle time before the agent's start counts, too.
		o.Since = ago(min(w.present, w.lastSign))
	}
	return o
}

// signs are the signs of the owner at one moment.
type signs struct {
	words []string
	sure  bool // without doubt
}

func (s *signs) add(format string, args ...any) {
	s.words = append(s.words, fmt.Sprintf(format, args...))
}

// findSigns finds the signs in a sample, and records the time of the last.
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
	// If no others work, the guests compete among themselves.
	if x.Starved != nil && *x.Starved > s.StarvedMost && x.NonGuestCPUs != nil && *x.NonGuestCPUs > s.IdleCPUs {
		out.add("all processes wait for memory %.0f %% of the time", 100**x.Starved)
	}
	switch {
	case len(out.words) == 1 && inUse:
		w.lastSign = max(w.lastSign, m.At-*x.Idle) // the time of the input, not of the sample
	case len(out.words) > 0:
		w.lastSign = m.At
	}
	return out
}

// input reports whether a person uses the machine.
func (w *Watch) input(out *signs, s Settings, m Moment) bool {
	idle := m.Sample.Idle
	if idle == nil || *idle >= s.InputWithin || m.At-*idle <= w.deafTo && w.deafTo > 0 {
		return false
	}
	out.add("input %s ago", idle.Round(time.Second))
	return true
}

// noteBusy records whether others' programs are busy. They stay busy until they are below
// a lower threshold.
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
