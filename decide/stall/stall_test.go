package stall

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pagurus/fleet"
)

const ms = time.Millisecond

var at = time.Unix(5000, 0).UTC()

// moved is a migration of guest j1g1, suspended at `at`.
func moved() fleet.Migration {
	return fleet.Migration{ID: "m1.j1g1", Guest: "j1g1", Job: "j1", Phase: fleet.Finished,
		Cost:    fleet.Progress{SuspendedAt: at, Downtime: 20 * ms},
		Entered: []fleet.Entered{{Phase: fleet.Preparing, At: at.Add(-4 * time.Second)}, {Phase: fleet.Switching, At: at}, {Phase: fleet.Finished, At: at.Add(500 * ms)}}}
}

func gap(began, took time.Duration, inside bool, why ...fleet.Cause) fleet.Gap {
	return fleet.Gap{At: at.Add(began), Took: took, InMPI: inside, Why: why}
}

func trace(rank int, guest fleet.GuestID, gaps ...fleet.Gap) fleet.Trace {
	for i := range gaps {
		gaps[i].Rank = rank
	}
	return fleet.Trace{Rank: rank, Ranks: 2, Guest: guest, At: at.Add(3 * time.Second), Gaps: gaps}
}

func words(causes []fleet.Cause) string {
	var out []string
	for _, c := range causes {
		w := string(c.What)
		if c.Rank != nil {
			w += "@" + string(rune('0'+*c.Rank))
		}
		out = append(out, w)
	}
	return strings.Join(out, " ")
}

func TestMeasure(t *testing.T) {
	timeout := fleet.Cause{What: fleet.TCPTimeout, Count: 1}
	stopped := fleet.Cause{What: fleet.RankStopped, Took: 250 * ms}
	for name, c := range map[string]struct {
		traces []fleet.Trace
		rank   int
		took   time.Duration
		why    string
	}{
		"a peer waits for the one that moves": {[]fleet.Trace{
			trace(0, "j1g0", gap(-2*ms, 60*ms, true)),
			trace(1, "j1g1", gap(-3*ms, 8*ms, true)),
		}, 0, 60 * ms, "guest-suspended@1"},
		"who moves waits longest, and its clock stopped": {[]fleet.Trace{
			trace(0, "j1g0", gap(-2*ms, 30*ms, true)),
			trace(1, "j1g1", gap(-5*ms, 220*ms, true, timeout)),
		}, 1, 240 * ms, "guest-suspended tcp-timeout"},
		"a peer waits for a lost segment": {[]fleet.Trace{
			trace(0, "j1g0", gap(-2*ms, 320*ms, true)),
			trace(1, "j1g1", gap(-5*ms, 220*ms, true, timeout)),
		}, 0, 320 * ms, "guest-suspended@1 tcp-timeout@1"},
		"what is far away is not the move's": {[]fleet.Trace{
			trace(0, "j1g0", gap(-9*time.Second, 5*time.Second, true), gap(2*time.Second, 900*ms, true), gap(100*ms, 40*ms, false)),
		}, 0, 40 * ms, ""},
		"one was stopped, the other waited": {[]fleet.Trace{
			trace(0, "j1g0", gap(200*ms, 260*ms, true)),
			trace(1, "j1g1", gap(205*ms, 251*ms, false, stopped)),
		}, 0, 260 * ms, "rank-stopped@1"},
	} {
		got, ok := Measure(moved(), []fleet.Migration{moved()}, c.traces)
		if !ok || got.Rank != c.rank || got.Took != c.took || words(got.Why) != c.why || got.Ranks != len(c.traces) {
			t.Errorf("%s: %v, rank %d, %v, why %q", name, ok, got.Rank, got.Took, words(got.Why))
		}
	}
	both, _ := Measure(moved(), nil, []fleet.Trace{trace(0, "j1g0", gap(-950*ms, 300*ms, true), gap(10*ms, 70*ms, true))})
	if both.Took != 300*ms || both.AtSwitch != 70*ms {
		t.Errorf("%v, of it %v at the switch", both.Took, both.AtSwitch)
	}
	if _, ok := Measure(moved(), nil, nil); ok {
		t.Error("a stall out of nothing")
	}
	if _, ok := Measure(fleet.Migration{}, nil, []fleet.Trace{trace(0, "j1g0", gap(0, ms, true))}); ok {
		t.Error("a stall at no time")
	}
}

// The undisturbed longest gap is for windows of the same length, without moves.
func TestUndisturbed(t *testing.T) {
	a, b := trace(0, "j1g0", gap(0, 60*ms, true)), trace(1, "j1g1")
	a.Seconds, b.Seconds = make([]time.Duration, 40), make([]time.Duration, 40)
	for i := range 40 { // the last one is 3 s after the suspension
		a.Seconds[i], b.Seconds[i] = 10*ms, 12*ms
		if i > 30 {
			a.Seconds[i] = 500 * ms // caused by the move
		}
	}
	b.Seconds[3] = 90 * ms // a single outlier
	got, ok := Measure(moved(), []fleet.Migration{moved()}, []fleet.Trace{a, b})
	if !ok || got.Undisturbed != 12*ms {
		t.Errorf("%v %+v", ok, got.Undisturbed)
	}
	before := moved()
	before.Entered = []fleet.Entered{{At: at.Add(-time.Hour)}, {At: at}}
	got, _ = Measure(moved(), []fleet.Migration{moved(), before}, []fleet.Trace{a, b})
	if got.Undisturbed != 0 {
		t.Errorf("%v while something moved all the time", got.Undisturbed)
	}
}

func TestExplainLeavesWhatItIsGiven(t *testing.T) {
	traces := []fleet.Trace{trace(0, "j1g0", gap(0, 30*ms, true)), trace(1, "j1g1", gap(0, 25*ms, true))}
	out := Explain(traces, []fleet.Migration{moved()})
	if traces[1].Gaps[0].Took != 25*ms || out[1].Gaps[0].Took != 45*ms || len(traces[0].Gaps[0].Why) != 0 || words(out[0].Gaps[0].Why) != "guest-suspended@1" {
		t.Errorf("%+v\n%+v", traces, out)
	}
}

// Guests may report anything.
func TestAnyTraces(t *testing.T) {
	number := rapid.OneOf(rapid.Int64Range(-5, 5000), rapid.SampledFrom([]int64{math.MinInt64, math.MaxInt64, 1 << 50}))
	rapid.Check(t, func(t *rapid.T) {
		var traces []fleet.Trace
		for range rapid.IntRange(0, 4).Draw(t, "ranks") {
			tr := fleet.Trace{Rank: int(number.Draw(t, "rank")), Guest: "j1g1", At: time.Unix(number.Draw(t, "at"), 0)}
			for range rapid.IntRange(0, 4).Draw(t, "gaps") {
				tr.Gaps = append(tr.Gaps, fleet.Gap{At: time.Unix(number.Draw(t, "began"), 0), Took: time.Duration(number.Draw(t, "took")), InMPI: true, Why: []fleet.Cause{{What: fleet.TCPProbe}}})
			}
			for range rapid.IntRange(0, 9).Draw(t, "seconds") {
				tr.Seconds = append(tr.Seconds, time.Duration(number.Draw(t, "second")))
			}
			traces = append(traces, tr)
		}
		Measure(moved(), []fleet.Migration{moved()}, traces)
	})
}

// In post-copy a guest waits for memory after it runs, too.
func TestWindowOfPostCopy(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	m := fleet.Migration{Cost: fleet.Progress{SuspendedAt: at, Downtime: 50 * time.Millisecond}}
	short, _ := Window(m)
	for took, want := range map[time.Duration]time.Duration{2 * time.Second: 2 * time.Second, time.Hour: mostPostCopy} {
		m.Entered = []fleet.Entered{{Phase: fleet.PostCopying, At: at}, {Phase: fleet.Retiring, At: at.Add(took)}}
		if long, ok := Window(m); !ok || long.To.Sub(short.To) != want || !long.From.Equal(short.From) {
			t.Errorf("post-copy for %s gives %+v, without %+v", took, long, short)
		}
	}
}

// The time that a guest's clock does not count ends when its target resumes it, not when
// its source has handed it over. A container's clock counts most of it.
func TestSuspensionEndsWhenTheTargetResumes(t *testing.T) {
	for name, c := range map[string]struct {
		kind    fleet.Kind
		resumed time.Duration // after the suspension, by the target's clock
		seen    time.Duration // the gap, by the guest's clock
		still   time.Duration
		want    time.Duration
	}{
		"one clock":                       {fleet.VM, 65 * ms, 5 * ms, 65 * ms, 70 * ms},
		"the target's clock is ahead":     {fleet.VM, 10 * time.Second, 5 * ms, 90 * ms, 95 * ms},
		"the target's clock is behind":    {fleet.VM, -10 * time.Second, 5 * ms, 20 * ms, 25 * ms},
		"the target's clock is unknown":   {fleet.VM, 0, 5 * ms, 90 * ms, 95 * ms},
		"a container's clock goes on":     {fleet.Container, 65 * ms, 50 * ms, 65 * ms, 65 * ms},
		"and more came to its suspension": {fleet.Container, 65 * ms, 80 * ms, 65 * ms, 80 * ms},
	} {
		t.Run(name, func(t *testing.T) { checkSuspension(t, c.kind, c.resumed, c.seen, c.still, c.want) })
	}
}

func checkSuspension(t *testing.T, kind fleet.Kind, resumed, seen, still, want time.Duration) {
	m := moved()
	m.Predicted = &fleet.Prediction{Kind: kind}
	m.Entered = append(m.Entered[:2:2], fleet.Entered{Phase: fleet.Activating, At: at.Add(25 * ms)}, fleet.Entered{Phase: fleet.Retiring, At: at.Add(95 * ms)}, m.Entered[2])
	if resumed != 0 {
		m.Resumed = at.Add(resumed)
	}
	traces := []fleet.Trace{trace(0, "j1g1", gap(-2*ms, seen, true))}
	s, ok := Measure(m, []fleet.Migration{m}, traces)
	if !ok || s.Took != want || words(s.Why) != "guest-suspended" || s.Why[0].Took != still {
		t.Errorf("%v, %s of %+v", ok, s.Took, s.Why)
	}
}
