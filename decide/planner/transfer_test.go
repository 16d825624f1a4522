package planner

import (
	"errors"
	"strings"
	"testing"

	"pagurus/fleet"
)

// packing makes a world whose hosts can compress, except those named.
func packing(t checker, not ...fleet.HostID) *world {
	w, _ := running(t, 2, "host1", "host2", "host3")
	for id, h := range w.s.Hosts {
		h.Facts.Abilities = map[fleet.Kind]fleet.Abilities{fleet.VM: {Live: true, Accelerator: "tcg", Compress: true}}
		for _, n := range not {
			if id == n {
				h.Facts.Abilities = map[fleet.Kind]fleet.Abilities{fleet.VM: {Live: true, Accelerator: "tcg"}}
			}
		}
		w.s.Hosts[id] = h
	}
	return w
}

// TestBothHostsCompressOrNone: target and source get the decision from the beginning of
// the move, whatever is learnt meanwhile.
func TestBothHostsCompressOrNone(t *testing.T) {
	slow, fast := int64(20<<20), int64(0)
	for _, c := range []struct {
		what   string
		not    fleet.HostID
		kind   fleet.Kind
		guests []fleet.GuestID
		limits fleet.Limits
		want   bool
		no     string
	}{
		{what: "a container told to", kind: fleet.Container, limits: fleet.Limits{Compress: fleet.CompressOn}, no: "never compressed"},
		{what: "slow", limits: fleet.Limits{BytesPerSecond: slow}, want: true},
		{what: "fast", limits: fleet.Limits{BytesPerSecond: fast}},
		{what: "fast but told to", limits: fleet.Limits{Compress: fleet.CompressOn}, want: true},
		{what: "slow but told not to", limits: fleet.Limits{BytesPerSecond: slow, Compress: fleet.CompressOff}},
		{what: "target cannot", not: "host3", limits: fleet.Limits{BytesPerSecond: slow}},
		{what: "source cannot", not: "host1", limits: fleet.Limits{BytesPerSecond: slow}},
		{what: "target cannot and is told to", not: "host3", limits: fleet.Limits{Compress: fleet.CompressOn}, no: "host3 cannot send or take in"},
		{what: "a gang", guests: []fleet.GuestID{"j1g0", "j1g1"}, limits: fleet.Limits{BytesPerSecond: slow}},
		{what: "a gang told to", guests: []fleet.GuestID{"j1g0", "j1g1"}, limits: fleet.Limits{Compress: fleet.CompressOn}, no: "one at a time"},
		{what: "nonsense", limits: fleet.Limits{Compress: "maybe"}, no: `"maybe"`},
		{what: "other nonsense", limits: fleet.Limits{PageCache: "eat"}, no: `"eat"`},
	} {
		w := packing(t, c.not)
		if c.guests == nil {
			c.guests = []fleet.GuestID{"j1g0"}
		}
		if c.kind != "" {
			g := w.s.Guests["j1g0"]
			g.Kind = c.kind
			w.s.Guests[g.ID] = g
			for _, h := range w.s.Hosts {
				h.Facts.Abilities[c.kind] = fleet.Abilities{Live: true}
			}
		}
		_, err := w.ask(fleet.Request{Verb: fleet.Migrate, Guests: c.guests, To: "host3", Limits: c.limits})
		var no *Refusal
		if c.no != "" {
			if !errors.As(err, &no) || !strings.Contains(err.Error(), c.no) {
				t.Errorf("%s: %v", c.what, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		m := w.s.Migrations["m1.j1g0"]
		if m.Packed != c.want || (m.Predicted.Limits.Compress == fleet.CompressOn) != c.want {
			t.Errorf("%s: packed %t, predicted with %+v", c.what, m.Packed, m.Predicted.Limits)
		}
		for _, verb := range []fleet.Verb{fleet.Receive, fleet.Copy} {
			if got := Task(w.s, fleet.Order{Verb: verb, Guest: m.Guest, Migration: m.ID}).Limits.Compress == fleet.CompressOn; got != c.want {
				t.Errorf("%s: %s is told to compress: %t", c.what, verb, got)
			}
		}
		w.answerAll()
		if g := w.s.Guests["j1g0"]; g.Home != "host3" {
			t.Errorf("%s: %+v", c.what, g)
		}
	}
}

// TestDrainKeepsWhatItWasTold: a drain's limits apply to all of its moves until undrain.
func TestDrainKeepsWhatItWasTold(t *testing.T) {
	w := packing(t)
	r := fleet.Request{Verb: fleet.Drain, Host: "host1", By: fleet.Caller{Admin: true},
		Limits: fleet.Limits{BytesPerSecond: 9 << 20, PageCache: fleet.SendCache, Compress: fleet.CompressOff}}
	f, err := new(Planner).Foresee(w.s, r)
	if err != nil || len(f.Migrations) == 0 || f.Migrations[0].Prediction.LinkBytesPerSecond > 9<<20 {
		t.Errorf("foreseen is %+v, %v", f, err)
	}
	w.must(r)
	want := fleet.Limits{BytesPerSecond: 9 << 20, PageCache: fleet.SendCache, Compress: fleet.CompressOff}
	if got := w.s.Hosts["host1"].Leave; got != want {
		t.Errorf("the host keeps %+v", got)
	}
	if got := w.s.Moves["m1"].Limits; got != want {
		t.Errorf("the move has %+v", got)
	}
	r.Limits = fleet.Limits{}
	w.must(r)
	if got := w.s.Hosts["host1"].Leave; got != r.Limits {
		t.Errorf("told otherwise it keeps %+v", got)
	}
	for _, nonsense := range []fleet.Limits{{PageCache: "eat"}, {BytesPerSecond: -1}} {
		r.Limits = nonsense
		if _, err := w.ask(r); err == nil {
			t.Errorf("%+v was taken", nonsense)
		}
	}
	r.Limits = fleet.Limits{PageCache: fleet.DropCache}
	w.must(r)
	w.must(fleet.Request{Verb: fleet.Undrain, Host: "host1", By: fleet.Caller{Admin: true}})
	if got := w.s.Hosts["host1"].Leave; got != (fleet.Limits{}) {
		t.Errorf("after undrain it keeps %+v", got)
	}
}
