package view

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pagurus/fleet"
)

// traced is the traces of some ranks.
func traced(ranks int) []fleet.Trace {
	var out []fleet.Trace
	for r := range ranks {
		t := fleet.Trace{
			Rank: r, Ranks: ranks, Guest: fleet.GuestID("j2g" + string(rune('0'+r%3))), Elapsed: 61 * time.Second, Outside: 30 * time.Second, Normal: 4 * time.Millisecond,
			Calls: map[fleet.CallClass]fleet.Calls{
				fleet.SendRecv: {Count: 1200, Took: 2 * time.Second}, fleet.WaitCall: {Count: 600, Took: 8 * time.Second}, fleet.Collective: {Count: 3, Took: time.Millisecond},
			},
			Sent:   []fleet.Sent{{Rank: (r + 1) % ranks, Messages: 17, Bytes: 80700}, {Rank: ranks - 1, Messages: uint64(r), Bytes: uint64(r) << 30}},
			Handed: fleet.Sent{Messages: 3, Bytes: 24},
		}
		t.SpanLength = time.Second
		t.Spans = map[fleet.CallClass][]int{fleet.SendRecv: {0, 10, 20, 30, 40, 50, 50}, fleet.WaitCall: {0, 0, 20, 20, 30, 40, 50, 90}}
		two := 2
		t.Gaps = []fleet.Gap{{Rank: r, At: noon.Add(time.Duration(r) * time.Second), Took: time.Duration(200-r) * time.Millisecond, InMPI: r%2 == 0, Call: fleet.WaitCall,
			Why: []fleet.Cause{{What: fleet.RankStopped, Took: 190 * time.Millisecond, Rank: &two}, {What: "\x1b[2J"}}}}
		out = append(out, t)
	}
	out[0].Elsewhere = fleet.Sent{Messages: 2, Bytes: 9}
	out[1].Gaps[0].Open, out[1].Gaps[0].Why = true, nil
	return out
}

func TestJobDetail(t *testing.T) {
	time.Local = time.UTC
	c := Read(busy())
	j, _ := c.Job("j2")
	j.Spec.Trace = true
	large := traced(20)
	untraced := c.Detail(c.Jobs[1], nil).Text(c)
	got := c.Detail(j, traced(4)).Text(c) + "\n----\n" + c.Detail(j, nil).Text(c) + "\n----\n" + SentTable(large).Text() + "\n----\n" + untraced
	golden(t, "job", got)
}

// Guests may send any trace, and it is still drawn.
func TestTracesMayBeAnything(t *testing.T) {
	number := rapid.OneOf(rapid.IntRange(-3, 20), rapid.SampledFrom([]int{math.MinInt64, math.MaxInt64 - 1, 1 << 40}))
	rapid.Check(t, func(t *rapid.T) {
		var traces []fleet.Trace
		for range rapid.IntRange(0, 20).Draw(t, "ranks") {
			tr := fleet.Trace{Rank: number.Draw(t, "rank"), Ranks: number.Draw(t, "of"), Elapsed: time.Duration(number.Draw(t, "elapsed")), Outside: time.Duration(number.Draw(t, "outside"))}
			for range rapid.IntRange(0, 3).Draw(t, "cells") {
				tr.Sent = append(tr.Sent, fleet.Sent{Rank: number.Draw(t, "to"), Messages: uint64(number.Draw(t, "messages")), Bytes: uint64(number.Draw(t, "bytes"))})
			}
			tr.Gaps = []fleet.Gap{{Took: time.Duration(number.Draw(t, "gap")), Why: []fleet.Cause{{What: fleet.Reason(rapid.String().Draw(t, "why")), Count: number.Draw(t, "count")}}}}
			tr.SpanLength = time.Duration(number.Draw(t, "span"))
			tr.Spans = map[fleet.CallClass][]int{fleet.WaitCall: rapid.SliceOfN(number, 0, 300).Draw(t, "waits"), fleet.OtherCall: rapid.SliceOfN(number, 0, 300).Draw(t, "others")}
			traces = append(traces, tr)
		}
		text := CallTable(traces).Text() + SpanTable(traces).Text() + SentTable(traces).Text() + GapTable(traces).Text()
		if strings.ContainsAny(text, "\x1b\r\x00") {
			t.Fatalf("%q", text)
		}
	})
}

// The text does not say who had the CPU: it depends on the guest's kind, which a trace does
// not contain.
func TestWhoHadTheCPUIsNotSaid(t *testing.T) {
	three := 3
	got := Why([]fleet.Cause{{What: fleet.CPUShared, Took: 20 * time.Millisecond}, {What: fleet.CPUShared, Took: 30 * time.Millisecond, Rank: &three}})
	if got != "ready, but others had the CPU for 20 ms; rank 3: ready, but others had the CPU for 30 ms" {
		t.Error(got)
	}
}
