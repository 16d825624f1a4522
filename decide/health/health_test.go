package health

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// Each kind is a sign from its limit on, for its time.
func TestLimits(t *testing.T) {
	for _, l := range limits {
		t.Run(string(l.kind), func(t *testing.T) {
			var w Watch
			count := func(n uint64) []fleet.Counter { return []fleet.Counter{{Kind: l.kind, Where: "x", Total: n}} }
			w.TakeCounters(count(1000), t0) // from before anybody looked
			w.TakeCounters(count(1000+l.count-1), t0.Add(time.Second))
			if s := w.Signs(t0.Add(time.Second)); len(s) > 0 {
				t.Fatalf("one below the limit: %+v", s)
			}
			w.TakeCounters(count(1000+l.count), t0.Add(2*time.Second))
			s := w.Signs(t0.Add(2 * time.Second))
			if len(s) != 1 || s[0].Kind != l.kind || s[0].Count != l.count || s[0].Where != "x" || s[0].Grave != l.grave || !strings.Contains(s[0].Sentence(), fmt.Sprint(l.count)) {
				t.Fatalf("at the limit: %+v", s)
			}
			if s := w.Signs(t0.Add(l.in + 2*time.Second)); len(s) > 0 {
				t.Errorf("for ever: %+v", s)
			}
		})
	}
}

// A counter that begins again has not risen by all that it was; a device that is gone is forgotten when nothing of it counts.
func TestCounterBeginsAgain(t *testing.T) {
	var w Watch
	at := func(s int) time.Time { return t0.Add(time.Duration(s) * time.Second) }
	disk := func(n uint64) []fleet.Counter {
		return []fleet.Counter{{Kind: fleet.DiskErrors, Where: "sda", Total: n}}
	}
	w.TakeCounters(disk(500), at(0))
	w.TakeCounters(disk(0), at(1))
	w.TakeCounters(disk(9), at(2))
	if s := w.Signs(at(2)); len(s) > 0 {
		t.Errorf("%+v", s)
	}
	w.TakeCounters(disk(10), at(3))
	w.TakeCounters(nil, at(4))
	if s := w.Signs(at(4)); len(s) != 1 {
		t.Errorf("a disk that failed and is gone: %+v", s)
	}
	w.TakeCounters(nil, at(2*3600))
	if len(w.Counters) > 0 {
		t.Errorf("for ever: %+v", w.Counters)
	}
}

// What is kept of a counter that rises all the time is bounded, and its sum right.
func TestManyRises(t *testing.T) {
	var w Watch
	for i := range 10 * mostRises {
		w.TakeCounters([]fleet.Counter{{Kind: fleet.MemoryFaults, Total: uint64(i)}}, t0.Add(time.Duration(i)*time.Second))
	}
	s := w.Signs(t0.Add(10 * mostRises * time.Second))
	if len(w.Counters[0].Rises) > mostRises || len(s) != 1 || s[0].Count != 10*mostRises-1 {
		t.Errorf("%d rises, %+v", len(w.Counters[0].Rises), s)
	}
}

func TestCheck(t *testing.T) {
	var w Watch
	w.Checked(true, "looking at disks\nsdb: 4 pending sectors\n\n", t0)
	w.Checked(true, "sdb: 5 pending sectors", t0.Add(time.Minute))
	s := w.Signs(t0.Add(time.Minute))
	if len(s) != 1 || !s[0].Grave || s[0].Says != "sdb: 5 pending sectors" || !s[0].Since.Equal(t0) || !s[0].Last.Equal(t0.Add(time.Minute)) {
		t.Errorf("%+v", s)
	}
	w.Checked(false, "", t0.Add(2*time.Minute))
	if s := w.Signs(t0.Add(2 * time.Minute)); len(s) > 0 {
		t.Errorf("it is well again: %+v", s)
	}
	w.Checked(true, strings.Repeat("é", 4000), t0)
	if s := w.Signs(t0)[0].Says; len(s) > mostSaid+5 || !strings.HasSuffix(s, "é…") {
		t.Errorf("%d bytes: %q", len(s), s)
	}
}

// A host is emptied for grave signs alone, until they are over or a person knows better; a person's drain stays.
func TestVacate(t *testing.T) {
	sign := func(at time.Time, grave bool) *fleet.Health {
		return &fleet.Health{Policy: fleet.HealthDrain, Signs: []fleet.Sign{{Kind: fleet.DiskErrors, Where: "sda", Count: 12, Since: at, Last: at, Grave: grave}}}
	}
	well := fleet.Host{ID: "a", State: fleet.HostUp, Facts: fleet.Facts{SeenAt: t0, Connected: true, Health: &fleet.Health{Policy: fleet.HealthDrain}}}
	with := func(h fleet.Host, f *fleet.Health) fleet.Host { h.Facts.Health = f; return h }
	stays := func(what string, h fleet.Host) {
		t.Helper()
		if h, changed := Vacate(h, t0, t0); changed {
			t.Errorf("%s: %+v", what, h)
		}
	}
	stays("well", well)
	stays("an old agent", with(well, nil))
	stays("not grave", with(well, sign(t0, false)))
	warned := sign(t0, true)
	warned.Policy = fleet.HealthWarn
	stays("only to be shown", with(well, warned))
	silent := with(well, sign(t0, true))
	silent.Facts.SeenAt, silent.Facts.Connected = t0.Add(-time.Hour), false
	stays("silent", silent)
	byHand := with(well, sign(t0, true))
	byHand.State = fleet.HostDraining
	stays("drained by a person", byHand)

	ill, changed := Vacate(with(well, sign(t0, true)), t0, t0)
	if !changed || ill.State != fleet.HostDraining || !ill.ForHealth || Why(ill) != "it counted 12 disk errors of sda" {
		t.Fatalf("%+v %q", ill, Why(ill))
	}
	stays("still ill", ill)
	again, changed := Vacate(with(ill, &fleet.Health{Policy: fleet.HealthDrain}), t0, t0)
	if !changed || again.State != fleet.HostUp || again.ForHealth {
		t.Errorf("well again: %+v", again)
	}
	known := with(well, sign(t0, true))
	known.SignsSeen = t0
	stays("a person knows", known)
	if h, changed := Vacate(with(known, sign(t0.Add(time.Second), true)), t0, t0); !changed || !h.ForHealth {
		t.Errorf("a new one: %+v", h)
	}
}
