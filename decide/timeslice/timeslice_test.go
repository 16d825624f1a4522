package timeslice

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pagurus/fleet"
)

// Every stage has every event that can happen there, and all stages are reached.
func TestTable(t *testing.T) {
	can := map[event][]stage{nothing: {watching, trying, kept, resting}, changed: {watching, trying, kept, resting}, ready: {watching}, better: {trying}, worse: {trying, kept}, rested: {resting}}
	reached := map[stage]bool{watching: true}
	for s := range stages {
		n := 0
		for e := range events {
			to, has := next[s][e]
			wants := false
			for _, at := range can[e] {
				wants = wants || at == s
			}
			if has != wants {
				t.Errorf("stage %d, event %d: in the table: %v, can happen: %v", s, e, has, wants)
			}
			if has {
				reached[to] = true
				n++
			}
		}
		if n != len(next[s]) {
			t.Errorf("stage %d has more than the events", s)
		}
	}
	if len(reached) != int(stages) {
		t.Errorf("only %v are reached", reached)
	}
}

func TestUsualSlices(t *testing.T) {
	ms := time.Millisecond
	for _, c := range []struct {
		p     Policy
		class fleet.Class
		asked bool
		want  time.Duration
	}{
		{Policy{}, fleet.Gold, true, 0},
		{Policy{Base: 30 * ms}, "", false, 0}, // as ever: only those that asked
		{Policy{Base: 30 * ms}, "", true, 30 * ms},
		{Policy{Base: 30 * ms}, fleet.Gold, true, 39 * ms},
		{Policy{Base: 30 * ms}, fleet.Normal, true, 30 * ms},
		{Policy{Base: 30 * ms}, fleet.Bronze, true, 21 * ms},
		{Policy{Base: 3 * ms, Adaptive: true}, "", false, 3 * ms},
		{Policy{Base: 3 * ms, Adaptive: true}, fleet.Bronze, true, 2100 * time.Microsecond},
		{Policy{Base: 3 * ms, Adaptive: true}, "platinum", true, 3 * ms},
	} {
		if got := c.p.Usual(Guest{Class: c.class, Asked: c.asked}); got.Length.Round(time.Microsecond) != c.want || got.Why == "" {
			t.Errorf("%+v %s: %+v", c.p, c.class, got)
		}
		tr := Tracker{Policy: c.p}
		if got := tr.Step(t0, map[fleet.GuestID]Guest{"g": {Class: c.class, Asked: c.asked}}); got["g"].Length.Round(time.Microsecond) != c.want {
			t.Errorf("%+v %s: the tracker gives %+v", c.p, c.class, got)
		}
	}
}

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// play is a host with made-up guests.
type play struct {
	t      *testing.T
	tr     Tracker
	at     time.Time
	guests map[fleet.GuestID]Guest
	given  map[fleet.GuestID]Given
}

func newPlay(t *testing.T, p Policy) *play {
	return &play{t: t, tr: Tracker{Policy: p}, at: t0, guests: map[fleet.GuestID]Guest{}}
}

// turn lets a period pass in which guests do as said, by the slices that they have.
func (p *play) turn(does map[fleet.GuestID]func(slice time.Duration) Counts) {
	p.at = p.at.Add(Every)
	for id, f := range does {
		g, more := p.guests[id], f(p.given[id].Length)
		g.CPUs = 1
		c := &g.Counts
		c.Ran, c.Waited, c.Slept, c.Preempted, c.Whole = c.Ran+more.Ran, c.Waited+more.Waited, c.Slept+more.Slept, c.Preempted+more.Preempted, more.Whole
		p.guests[id] = g
	}
	p.given = p.tr.Step(p.at, p.guests)
}

// computes is a guest that shares a processor: displaced once in each slice.
func computes(slice time.Duration) Counts {
	return Counts{Ran: Every / 2, Waited: Every / 2, Preempted: uint64(Every / 2 / max(slice, time.Millisecond)), Slept: 3, Whole: true}
}

// waits is a guest that waits for a tenth of others' slices before it runs; a shorter slice of its own helps.
func waits(slice time.Duration) Counts {
	return Counts{Ran: Every / 10, Waited: Every / 100 * slice / (3 * time.Millisecond), Slept: 2000, Preempted: 10, Whole: true}
}

type plays = map[fleet.GuestID]func(time.Duration) Counts

// adaptive is the policy on Linux.
var adaptive = Policy{Base: LinuxUsual, Adaptive: true}

// is checks a guest's slice and the words for it.
func (p *play) is(id fleet.GuestID, want time.Duration, words string) {
	p.t.Helper()
	if got := p.given[id]; got.Length != want || !strings.Contains(got.Why, words) {
		p.t.Errorf("after %s %s has %s: %s; want %s: %s", p.at.Sub(t0), id, got.Length, got.Why, want, words)
	}
}

func TestSlicesFollowHistories(t *testing.T) {
	const usual, long, short = LinuxUsual, factor * LinuxUsual, LinuxUsual / factor
	flat := func(time.Duration) Counts { c := computes(usual); return c }
	slower := func(s time.Duration) Counts { // displaced less often, but for longer
		c := computes(s)
		if s > usual {
			c.Ran, c.Waited = Every*2/5, Every*3/5
		}
		return c
	}
	idle := func(time.Duration) Counts { return Counts{Ran: Every / 100, Slept: 5, Whole: true} }
	mixes := func(time.Duration) Counts {
		return Counts{Ran: Every / 2, Waited: Every / 10, Slept: 250, Preempted: 9, Whole: true}
	}
	alone := func(time.Duration) Counts { return Counts{Ran: Every, Slept: 3, Whole: true} }
	for name, c := range map[string]struct {
		does   func(time.Duration) Counts
		length time.Duration
		words  string
	}{
		"computes":                        {computes, long, "it computes, and a longer slice measured better"},
		"computes, and gains nothing":     {flat, usual, "a longer one was tried, because it computes, and measured no better"},
		"computes, and gets less":         {slower, usual, "measured no better"},
		"computes alone":                  {alone, usual, "it computes"},
		"waits":                           {waits, short, "a shorter slice measured better"},
		"waits, and gains nothing":        {func(time.Duration) Counts { return waits(usual) }, usual, "a shorter one was tried"},
		"does hardly anything":            {idle, usual, "until it is known"},
		"does both":                       {mixes, usual, "neither computes alone nor mostly waits"},
		"whose waits nobody knows, alone": {func(time.Duration) Counts { return Counts{Ran: Every * 9 / 10} }, usual, "measured no better"},
	} {
		p := newPlay(t, adaptive)
		for range 14 {
			p.turn(plays{"g": c.does})
		}
		if got := p.given["g"]; got.Length != c.length || !strings.Contains(got.Why, c.words) {
			t.Errorf("a guest that %s has %s: %s", name, got.Length, got.Why)
		}
	}
}

// A guest that begins to do something else has its usual slice again, and then another; one that goes and comes again begins at the beginning.
func TestSlicesChangeWithGuests(t *testing.T) {
	p := newPlay(t, adaptive)
	for range 14 {
		p.turn(plays{"g": computes})
	}
	p.is("g", factor*LinuxUsual, "measured better")
	p.turn(plays{"g": waits}) // one period of another kind changes nothing
	p.turn(plays{"g": computes})
	p.is("g", factor*LinuxUsual, "measured better")
	for range window {
		p.turn(plays{"g": waits})
	}
	p.is("g", LinuxUsual, "it mostly waits")
	for range 10 {
		p.turn(plays{"g": waits})
	}
	p.is("g", LinuxUsual/factor, "a shorter slice measured better")
	delete(p.guests, "g")
	p.turn(nil)
	p.turn(plays{"g": waits})
	p.is("g", LinuxUsual, "until it is known")
	g := p.guests["g"]
	g.Counts = Counts{Whole: true} // it counts from its beginning, as after a restart of its process
	p.guests["g"] = g
	p.turn(nil)
	p.is("g", LinuxUsual, "until it is known")
}

// One that gained nothing is tried again ever more seldom; what a kept slice gained and lost again ends it.
func TestSlicesAreTriedAgain(t *testing.T) {
	p := newPlay(t, adaptive)
	tries, was := 0, LinuxUsual
	for range 2000 {
		p.turn(plays{"g": func(time.Duration) Counts { return computes(LinuxUsual) }})
		if now := p.given["g"].Length; now != was {
			if was = now; now != LinuxUsual {
				tries++
			}
		}
	}
	if tries < 4 || tries > 9 { // after 12, 24, 48, ... periods, an hour at most
		t.Errorf("tried %d times in 2000 periods", tries)
	}
	p = newPlay(t, adaptive)
	for range 14 {
		p.turn(plays{"g": computes})
	}
	crowded := func(s time.Duration) Counts { c := computes(s); c.Preempted *= 4; return c }
	for range window + 1 {
		p.turn(plays{"g": crowded})
	}
	p.is("g", LinuxUsual, "measured no better")
}

// One guest of a host tries at a time, and a trial that others pay for ends.
func TestOneGuestTries(t *testing.T) {
	p := newPlay(t, adaptive)
	both := 0
	for range 30 {
		p.turn(plays{"a": computes, "b": computes})
		n := 0
		for _, id := range []fleet.GuestID{"a", "b"} {
			if strings.Contains(p.given[id].Why, "is being tried") {
				n++
			}
		}
		both = max(both, n)
	}
	p.is("a", factor*LinuxUsual, "measured better")
	p.is("b", factor*LinuxUsual, "measured better")
	if both != 1 {
		t.Errorf("%d tried at once", both)
	}
	p = newPlay(t, adaptive)
	for range 12 {
		p.turn(plays{"a": computes, "b": func(time.Duration) Counts {
			c := Counts{Ran: Every / 2, Waited: Every / 10, Slept: 250, Whole: true}
			if p.given["a"].Length > LinuxUsual {
				c.Waited *= 2
			}
			return c
		}})
	}
	p.is("a", LinuxUsual, "measured no better")
}

// Where all guests have one slice they are one: what is known is how long they ran.
func TestOneSliceForAll(t *testing.T) {
	p := newPlay(t, Policy{Base: XenUsual, Adaptive: true, One: true})
	runs := func(part float64) func(time.Duration) Counts {
		return func(s time.Duration) Counts {
			if s > XenUsual {
				part *= 1.01 // less than counts
			}
			return Counts{Ran: time.Duration(part * float64(Every))}
		}
	}
	for range 12 {
		p.turn(plays{"a": runs(0.9), "b": runs(0.9)})
	}
	p.is("a", XenUsual, "measured no better")
	p.is("b", XenUsual, "measured no better")
	p = newPlay(t, Policy{Base: XenUsual, Adaptive: true, One: true})
	p.guests["a"], p.guests["b"] = Guest{Class: fleet.Bronze, Asked: true}, Guest{Class: fleet.Gold, Asked: true}
	for range 12 {
		p.turn(plays{"a": func(time.Duration) Counts { return Counts{Ran: Every / 5} }, "b": func(s time.Duration) Counts {
			if s < XenUsual {
				return Counts{Ran: Every / 3}
			}
			return Counts{Ran: Every / 5}
		}})
	}
	if a, b := p.given["a"], p.given["b"]; a != b || a.Length >= XenUsual || !strings.Contains(a.Why, "a shorter slice measured better") {
		t.Errorf("%+v, %+v", a, b)
	}
}

// Where all guests have one slice, what one did before it came counts for nothing.
func TestOneThatJoins(t *testing.T) {
	busy := func(time.Duration) Counts { return Counts{Ran: Every * 9 / 10} }
	for when := range 12 {
		p := newPlay(t, Policy{Base: XenUsual, Adaptive: true, One: true})
		for turn := range 12 {
			if turn == when {
				p.guests["b"] = Guest{CPUs: 1, Counts: Counts{Ran: time.Hour}}
			}
			p.turn(plays{"a": busy})
			if got := p.given["a"]; strings.Contains(got.Why, "measured better") {
				t.Errorf("b joins in turn %d: in turn %d a has %s: %s", when, turn, got.Length, got.Why)
			}
		}
	}
}

// Whatever guests do: a slice is the usual one or the factor from it, and at most one guest tries.
func TestAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr, at, guests := Tracker{Policy: adaptive}, t0, map[fleet.GuestID]Guest{}
		if rapid.Bool().Draw(t, "one") {
			tr.Policy.One = true
		}
		for range rapid.IntRange(1, 80).Draw(t, "periods") {
			at = at.Add(Every)
			for i := range rapid.IntRange(0, 3).Draw(t, "guests") {
				id := fleet.GuestID(fmt.Sprint("g", i))
				if rapid.IntRange(0, 20).Draw(t, "gone") == 0 {
					delete(guests, id)
					continue
				}
				g := guests[id]
				g.Class = fleet.Bronze
				g.Counts.Ran += time.Duration(rapid.IntRange(0, int(Every)).Draw(t, "ran"))
				g.Counts.Waited += time.Duration(rapid.IntRange(0, int(Every)).Draw(t, "waited"))
				g.Counts.Slept += uint64(rapid.SampledFrom([]int{0, 10, 10000}).Draw(t, "slept"))
				g.Counts.Preempted += uint64(rapid.IntRange(0, 1000).Draw(t, "preempted"))
				g.Counts.Whole = rapid.IntRange(0, 20).Draw(t, "whole") > 0
				guests[id] = g
			}
			given, tries := tr.Step(at, guests), 0
			if len(given) != len(guests) {
				t.Fatalf("%d guests have %d slices", len(guests), len(given))
			}
			usual := tr.Policy.Usual(Guest{Class: fleet.Bronze}).Length
			for id, g := range given {
				if g.Why == "" || g.Length != usual && g.Length != usual*factor && g.Length != usual/factor {
					t.Fatalf("%s has %+v", id, g)
				}
				if strings.Contains(g.Why, "is being tried") {
					tries++
				}
			}
			if tries > 1 && !tr.Policy.One {
				t.Fatalf("%d guests try at once: %+v", tries, given)
			}
		}
	})
}
