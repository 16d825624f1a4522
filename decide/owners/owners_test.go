package owners

import (
	"math"
	"testing"
	"time"

	"pagurus/decide/state"
	"pagurus/fleet"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func caseOf(there time.Duration) Case {
	return Case{At: t0, Owner: fleet.Owner{Present: true, Since: t0.Add(-there)}, Room: func() bool { return true },
		Price: func() Price { return Price{10 * time.Second, 100 * time.Millisecond} }}
}

// Every policy does what its name says, and no guest leaves without a target.
func TestPoliciesAreWhatTheyAreCalled(t *testing.T) {
	for name, want := range map[string]Action{"stay": Stay, "suspend": Suspend, "requeue": Requeue, "evacuate": Leave, "predictive": Leave} {
		p, ok := Named(name)
		if !ok || p.Name() != name {
			t.Fatalf("there is no %s", name)
		}
		if got := p.Evaluate(caseOf(time.Second)); got.Do != want || got.Why == "" {
			t.Errorf("%s: %+v, want %s", name, got, want)
		}
		stuck := caseOf(time.Second)
		stuck.Room = func() bool { return false }
		if got := p.Evaluate(stuck); got.Do == Leave || got.Do == Suspend && want == Leave && got.Again == 0 {
			t.Errorf("%s with nowhere to go: %+v", name, got)
		}
	}
	stuck := caseOf(time.Second)
	stuck.Held, stuck.Stuck = true, Stay
	for _, name := range []string{"evacuate", "predictive"} {
		p, _ := Named(name)
		if got := p.Evaluate(stuck); got.Do != Stay || got.Again == 0 || got.Why != "they could not leave just now and stay until that is tried again" {
			t.Errorf("%s, and with nowhere to go they stay: %+v", name, got)
		}
	}
	if _, ok := Named("none"); ok {
		t.Error("there is a policy none")
	}
}

// Waiting ends, once, and the sooner the cheaper leaving is.
func TestPredictiveWaitsNoLongerThanItPays(t *testing.T) {
	waited := func(total time.Duration) time.Duration {
		left := time.Duration(-1)
		for there := time.Second; there < 24*time.Hour; there += there/10 + time.Second {
			s := caseOf(there)
			s.Price = func() Price { return Price{total, 0} }
			j := (Predictive{Down: Usual}).Evaluate(s)
			switch {
			case j.Do == Leave && left < 0:
				left = there
			case j.Do != Leave && left >= 0:
				t.Errorf("%s: leaves after %s and waits after %s", total, left, there)
			case j.Do != Leave && j.Again <= 0:
				t.Errorf("%s: waits without end after %s", total, there)
			}
		}
		return left
	}
	last := time.Duration(0)
	for _, total := range []time.Duration{time.Second, time.Minute, 10 * time.Minute, 2 * time.Hour} {
		w := waited(total)
		if w < last {
			t.Errorf("it waits %s where leaving takes %s, and %s where it takes less", w, total, last)
		}
		last = w
	}
	if last < time.Minute {
		t.Errorf("it waits only %s where leaving takes two hours", last)
	}
}

// Laws of the fit: the hazard is the rate of decrease of Lasts, Mean equals Left after 0,
// and half last longer than the median.
func TestFit(t *testing.T) {
	f := Fit{Shape: 0.45, Hours: 4.16}
	at, step := 3*time.Hour, time.Second
	lost := (f.Lasts(at) - f.Lasts(at+step)) / f.Lasts(at) / step.Hours()
	if h := f.Hazard(at); math.Abs(h-lost)/h > 0.01 {
		t.Errorf("hazard %g, it loses %g", h, lost)
	}
	if m := f.Lasts(f.At(0.5)); math.Abs(m-0.5) > 1e-9 {
		t.Errorf("%g last longer than the median", m)
	}
	if a, b := f.Mean().Hours(), f.Left(0).Hours(); math.Abs(a-b)/a > 0.05 {
		t.Errorf("mean %g, left at the beginning %g", a, b)
	}
	if f.Left(10*time.Hour) <= f.Left(time.Hour) {
		t.Error("what has lasted long does not last longer")
	}
}

// Every policy listed in fleet exists.
func TestEveryPolicyHasItsWords(t *testing.T) {
	if len(fleet.VacatePolicies) != len(All()) {
		t.Errorf("%d policies have words, there are %v", len(fleet.VacatePolicies), Names())
	}
	for _, words := range fleet.VacatePolicies {
		p, known := Named(string(words.Name))
		if !known || words.Says == "" || p.Placement().Name() != words.Placement {
			t.Errorf("%+v", words)
		}
	}
}

// TestPriceOfWhatHasGrown: leaving costs more once a guest has taken memory since its
// profile.
func TestPriceOfWhatHasGrown(t *testing.T) {
	price := func(resident int64) time.Duration {
		look := fleet.Profile{MemoryBytes: 1 << 30, FilledBytes: 100 << 20, Resident: 150 << 20}
		facts := fleet.GuestFacts{Run: fleet.Running, ResidentBytes: resident, Profile: &look}
		s := fleet.Snapshot{
			Guests: map[fleet.GuestID]fleet.Guest{"g": {ID: "g", Kind: fleet.VM, Home: "a", Need: fleet.Resources{MemoryBytes: 1 << 30}}},
			Hosts:  map[fleet.HostID]fleet.Host{"a": {ID: "a", Facts: fleet.Facts{Guests: map[fleet.GuestID]fleet.GuestFacts{"g": facts}}}},
		}
		return PriceOf(state.NewIndex(s, nil), []fleet.GuestID{"g"}, []fleet.HostID{"b"}).Total
	}
	if before, grown := price(150<<20), price(800<<20); grown < 2*before {
		t.Errorf("it costs %s to leave, and %s with 650 MiB more", before, grown)
	}
}
