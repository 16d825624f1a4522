package controller

import (
	"fmt"
	"testing"
	"time"

	"pagurus/fleet"
)

// A job's programs ran one after the other, the second with fewer ranks and on other guests.
func TestTheYoungestProgramCounts(t *testing.T) {
	trace := func(guest fleet.GuestID, rank, ranks int, begun int64) fleet.Trace {
		return fleet.Trace{Guest: guest, Rank: rank, Ranks: ranks, Begun: time.Unix(begun, 0)}
	}
	got := byRank([]fleet.Trace{
		trace("g0", 0, 3, 10), trace("g0", 1, 3, 10), trace("g1", 2, 3, 10), trace("g1", 1, 2, 20), trace("g0", 0, 2, 20),
	})
	var said []string
	for _, tr := range got {
		said = append(said, fmt.Sprint(tr.Guest, tr.Rank, tr.Begun.Unix()))
	}
	if fmt.Sprint(said) != "[g00 20 g11 20]" {
		t.Error(said)
	}
	if got := byRank(nil); len(got) != 0 {
		t.Error(got)
	}
}

func TestTracesAreKeptUntilTheJobIsForgotten(t *testing.T) {
	s := newSpool(t.TempDir())
	for _, g := range []fleet.GuestID{"j1g1", "j1g0"} {
		for range 2 {
			if err := s.keepTraces("j1", g, []fleet.Trace{{Rank: int(g[3] - '0'), Guest: g}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := s.traces("j1"); len(got) != 2 || got[1].Guest != "j1g1" {
		t.Errorf("%+v", got)
	}
	if err := s.keepTraces("j1", "../x", nil); err == nil {
		t.Error("a guest has made a file elsewhere")
	}
	if err := s.forget("j1"); err != nil || len(s.traces("j1")) != 0 || len(s.traces("../j1")) != 0 {
		t.Errorf("%v", err)
	}
}

func TestGuestsCannotSayWhatCannotBe(t *testing.T) {
	got := plausible([]fleet.Trace{{Guest: "j9g9", Elapsed: -5, Gaps: []fleet.Gap{{Rank: 7, Took: 1 << 62}}, Seconds: []time.Duration{-1},
		SpanLength: -1, Spans: map[fleet.CallClass][]int{fleet.WaitCall: make([]int, 5000)}, Newest: []fleet.Call{{Took: -3}}}}, "j1g0")
	if g := got[0]; g.Guest != "j1g0" || g.Elapsed != 0 || g.Gaps[0].Rank != 0 || g.Gaps[0].Took != longestGap || g.Seconds[0] != 0 ||
		g.SpanLength != 0 || len(g.Spans[fleet.WaitCall]) != mostSpans || g.Newest[0].Took != 0 {
		t.Errorf("%+v", g)
	}
}
