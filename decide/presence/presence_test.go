package presence

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

var states = []fleet.OwnerState{fleet.OwnerAbsent, fleet.OwnerReturning, fleet.OwnerPresent, fleet.OwnerLeaving}

// noon is within every working day.
var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

// world is a host with simulated sensors.
type world struct {
	t      *testing.T
	policy fleet.OwnerPolicy
	at     time.Duration
	watch  Watch
	sample fleet.OwnerSample
	typed  time.Duration // when the last input came
	moves  []fleet.OwnerState
}

// idleFor makes a host whose owner has been away for d.
func idleFor(t *testing.T, d time.Duration, p fleet.OwnerPolicy) *world {
	p.Owned = true
	w := &world{t: t, policy: p, at: d}
	w.load(0)
	w.step(0)
	if w.watch.in != fleet.OwnerAbsent {
		t.Fatalf("after %s the owner is %s", d, w.watch.in)
	}
	w.moves = nil
	return w
}

func (w *world) load(cpus float64) { w.sample.NonGuestCPUs = &cpus }

// step advances time and takes a sample.
func (w *world) step(d time.Duration) {
	w.at += d
	idle := w.at - w.typed
	w.sample.Idle = &idle
	was := w.watch.in
	w.watch = Next(w.watch, w.policy, Moment{At: w.at, Clock: noon.Add(w.at), CPUs: 4, Sample: w.sample})
	if w.watch.in != was {
		w.moves = append(w.moves, w.watch.in)
	}
}

// pass advances time second by second.
func (w *world) pass(d time.Duration) {
	for range int(d / time.Second) {
		w.step(time.Second)
	}
}

func (w *world) is(want ...fleet.OwnerState) {
	w.t.Helper()
	if !slices.Equal(w.moves, want) {
		w.t.Errorf("the owner was %v, want %v (%s)", w.moves, want, w.watch.why)
	}
	w.moves = nil
}

// Every state has a path to present and to absent, no line is duplicated, and none leads
// to its own state.
func TestTable(t *testing.T) {
	ways := map[fleet.OwnerState]map[fleet.OwnerState]bool{}
	lines := map[[2]string]bool{}
	for _, a := range arrows {
		key := [2]string{string(a.from), string(a.on)}
		if lines[key] || a.from == a.to || !slices.Contains(states, a.from) || !slices.Contains(states, a.to) {
			t.Errorf("the line %v makes no sense", a)
		}
		lines[key] = true
		if ways[a.from] == nil {
			ways[a.from] = map[fleet.OwnerState]bool{}
		}
		ways[a.from][a.to] = true
	}
	for _, from := range states {
		for _, to := range []fleet.OwnerState{fleet.OwnerAbsent, fleet.OwnerPresent} {
			reached := map[fleet.OwnerState]bool{from: true}
			for range states {
				for s := range reached {
					for next := range ways[s] {
						reached[next] = true
					}
				}
			}
			if !reached[to] {
				t.Errorf("nothing leads from %s to %s", from, to)
			}
		}
	}
}

func TestOwnerComesStaysAndGoes(t *testing.T) {
	w := idleFor(t, time.Hour, fleet.OwnerPolicy{})
	w.load(1)
	w.step(time.Second)
	w.is(fleet.OwnerReturning) // at once
	w.pass(19 * time.Second)
	w.is()
	w.pass(2 * time.Second)
	w.is(fleet.OwnerPresent)
	w.load(0.2) // less, but above the lower threshold
	w.pass(time.Minute)
	w.is()
	w.load(0)
	w.pass(9 * time.Second)
	w.is()
	w.pass(2 * time.Second)
	w.is(fleet.OwnerLeaving)
	w.load(1)
	w.step(time.Second)
	w.is(fleet.OwnerPresent) // an owner who was just there need not prove it again
	w.load(0)
	w.pass(15*time.Minute - 2*time.Second)
	w.is(fleet.OwnerLeaving)
	w.pass(3 * time.Second)
	w.is(fleet.OwnerAbsent)
}

// One touch of the mouse makes guests yield and moves none.
func TestOneTouch(t *testing.T) {
	w := idleFor(t, time.Hour, fleet.OwnerPolicy{})
	w.typed = w.at + time.Second
	w.pass(30 * time.Second)
	w.is(fleet.OwnerReturning, fleet.OwnerAbsent)
}

// An owner who comes and goes every few seconds counts as staying: one arrival, one
// departure.
func TestOwnerWhoFlickers(t *testing.T) {
	for _, period := range []time.Duration{2, 3, 5, 9} {
		w := idleFor(t, time.Hour, fleet.OwnerPolicy{})
		for range 100 {
			w.load(1)
			w.pass(period * time.Second)
			w.load(0)
			w.pass(period * time.Second)
		}
		w.is(fleet.OwnerReturning, fleet.OwnerPresent)
		w.pass(16 * time.Minute)
		w.is(fleet.OwnerLeaving, fleet.OwnerAbsent)
	}
}

func TestClaimAndRelease(t *testing.T) {
	w := idleFor(t, time.Hour, fleet.OwnerPolicy{})
	w.policy.Claimed = true
	w.step(time.Second)
	w.is(fleet.OwnerPresent)
	w.pass(time.Hour)
	w.is()
	w.step(700 * time.Millisecond)
	w.typed = w.at - 300*time.Millisecond // the key press of the release itself
	w.policy.Claimed = false
	w.step(0)
	w.is(fleet.OwnerAbsent)
	w.pass(time.Minute)
	w.is()
	w.typed = w.at // a later key press counts
	w.step(time.Second)
	w.is(fleet.OwnerReturning)
	// A release while the owner's program runs is overridden.
	w = idleFor(t, time.Hour, fleet.OwnerPolicy{Claimed: false})
	w.policy.Claimed = true
	w.load(3)
	w.pass(5 * time.Second)
	w.policy.Claimed = false
	w.pass(5 * time.Second)
	w.is(fleet.OwnerPresent)
	// A host without an owner can be claimed, and is free at once.
	w = &world{t: t, policy: fleet.OwnerPolicy{Claimed: true}}
	w.step(time.Second)
	if !w.watch.in.There() {
		t.Errorf("a host that was claimed is %q", w.watch.in)
	}
	w.policy.Claimed = false
	w.step(time.Second)
	if w.watch.in != "" {
		t.Errorf("a host without an owner is %q", w.watch.in)
	}
}

func TestHours(t *testing.T) {
	night := fleet.Hours{From: 19 * time.Hour, To: 7 * time.Hour}
	for clock, welcome := range map[string]bool{"18:59": false, "19:00": true, "23:59": true, "00:00": true, "06:59": true, "07:00": false, "12:00": false} {
		at, err := time.Parse("15:04", clock)
		if err != nil {
			t.Fatal(err)
		}
		p := fleet.OwnerPolicy{Owned: true, Hours: night}
		idle := 24 * time.Hour
		w := Next(Watch{}, p, Moment{At: idle, Clock: at, CPUs: 2, Sample: fleet.OwnerSample{Idle: &idle}})
		if got := !w.in.There(); got != welcome {
			t.Errorf("at %s guests are welcome: %v, want %v (%s)", clock, got, welcome, w.in)
		}
	}
}

// Sensors that are missing, fail, or are visibly wrong do not make an owner come or stay.
func TestSensorsThatFail(t *testing.T) {
	w := idleFor(t, time.Hour, fleet.OwnerPolicy{})
	w.load(2)
	w.pass(time.Minute)
	w.is(fleet.OwnerReturning, fleet.OwnerPresent)
	w.sample = fleet.OwnerSample{Deaf: []string{"CPUs used by others: gone"}} // with the only sign
	w.pass(16 * time.Minute)
	w.is(fleet.OwnerLeaving, fleet.OwnerAbsent)
	o := w.watch.Owner(w.at, noon)
	if len(o.Deaf) != 1 || o.Present {
		t.Errorf("it says %+v", o)
	}
	// Without sensors a host is idle once it was watched long enough, and not before.
	p := fleet.OwnerPolicy{Owned: true}
	watch := Next(Watch{}, p, Moment{At: time.Hour})
	if watch.in != fleet.OwnerLeaving {
		t.Errorf("a host that was never sensed is %s", watch.in)
	}
	if watch = Next(watch, p, Moment{At: time.Hour + 15*time.Minute}); watch.in != fleet.OwnerAbsent {
		t.Errorf("after a quarter of an hour without a sign it is %s", watch.in)
	}
}

// The wall clock does not matter.
func TestClockThatJumps(t *testing.T) {
	w := idleFor(t, time.Hour, fleet.OwnerPolicy{})
	w.load(1)
	w.pass(time.Minute)
	w.is(fleet.OwnerReturning, fleet.OwnerPresent)
	for _, jump := range []time.Duration{-1000 * time.Hour, 1000 * time.Hour} {
		w.watch = Next(w.watch, w.policy, Moment{At: w.at, Clock: noon.Add(jump), CPUs: 4, Sample: w.sample})
		if o := w.watch.Owner(w.at, noon.Add(jump)); !o.Present || o.ThereFor(noon.Add(jump)) > 2*time.Minute {
			t.Errorf("after a jump by %s the owner is there for %s", jump, o.ThereFor(noon.Add(jump)))
		}
		// The controller has its own clock.
		if o := w.watch.Owner(w.at, noon.Add(jump)).By(noon); o.ThereFor(noon) != w.at-w.watch.present {
			t.Errorf("by another clock the owner is there for %s, want %s", o.ThereFor(noon), w.at-w.watch.present)
		}
	}
}

func TestPresets(t *testing.T) {
	condor := idleFor(t, time.Hour, fleet.OwnerPolicy{Preset: "condor"})
	condor.load(0.6)
	condor.pass(119 * time.Second)
	condor.is() // requires two minutes of load
	condor.pass(3 * time.Second)
	condor.is(fleet.OwnerReturning) // guests are suspended
	condor.pass(10*time.Minute - 3*time.Second)
	condor.is()
	condor.pass(5 * time.Second)
	condor.is(fleet.OwnerPresent) // guests are evicted
	condor = idleFor(t, time.Hour, fleet.OwnerPolicy{Preset: "condor"})
	condor.typed = condor.at
	condor.step(time.Second)
	condor.is(fleet.OwnerReturning)
	condor.pass(5 * time.Minute)
	condor.is(fleet.OwnerAbsent) // guests run again
	boinc := idleFor(t, time.Hour, fleet.OwnerPolicy{Preset: "boinc"})
	boinc.load(1.5) // of 4: less than half
	boinc.pass(time.Minute)
	boinc.is()
	boinc.load(2.5)
	boinc.pass(2 * time.Second)
	boinc.is(fleet.OwnerReturning, fleet.OwnerPresent)
	boinc = idleFor(t, time.Hour, fleet.OwnerPolicy{Preset: "boinc"})
	boinc.typed = boinc.at
	boinc.pass(2 * time.Second)
	boinc.is(fleet.OwnerReturning, fleet.OwnerPresent)
	boinc.pass(3 * time.Minute)
	boinc.is(fleet.OwnerLeaving, fleet.OwnerAbsent)
	for _, p := range append(slices.Clone(fleet.Presets), "", "no such") {
		if s := Of(fleet.OwnerPolicy{Preset: p, IdleAfter: time.Second}); s.IdleAfter != time.Second || s.LeavingAfter > time.Second || s.InputWithin > time.Second {
			t.Errorf("%q with an owner who is gone after a second: %+v", p, s)
		}
	}
}

// Every sign is named, and each is enough alone.
func TestSigns(t *testing.T) {
	half, some := 0.5, 0.2
	for want, s := range map[string]fleet.OwnerSample{
		"blender runs": {Exclusive: []string{"blender"}}, "on battery": {OnBattery: true},
		"wait for memory": {Starved: &half, NonGuestCPUs: &some}, "leave 0 % of the memory": {Available: new(float64)},
		"non-guest load is 0.5 CPUs": {NonGuestCPUs: &half},
	} {
		w := idleFor(t, time.Hour, fleet.OwnerPolicy{})
		if w.sample = s; s.NonGuestCPUs == nil {
			w.load(0)
		}
		w.step(time.Second)
		if !w.watch.in.There() || !strings.Contains(w.watch.why, want) {
			t.Errorf("%q: the owner is %s, %q", want, w.watch.in, w.watch.why)
		}
	}
	// Waiting alone, for CPUs or memory, is caused by our own guests.
	w := idleFor(t, time.Hour, fleet.OwnerPolicy{})
	full := 1.0
	w.sample.Waiting, w.sample.Starved = &full, &full
	w.pass(time.Minute)
	w.is()
	w.sample.NonGuestCPUs = nil // unknown whether others work
	w.pass(time.Minute)
	w.is()
}

// From any state, a quarter of an hour without signs leads to absent, and a minute with
// signs to present, only through the table.
func TestAnything(t *testing.T) {
	seeds := uint64(200)
	if testing.Short() {
		seeds = 20
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 5))
		w := idleFor(t, time.Hour, fleet.OwnerPolicy{Preset: []string{"", "condor", "boinc"}[seed%3]})
		for range 2000 {
			switch r.IntN(6) {
			case 0:
				w.load(4 * r.Float64())
			case 1:
				w.load(0)
			case 2:
				w.typed = w.at
			case 3:
				w.policy.Claimed = r.IntN(4) == 0
			case 4:
				w.sample.NonGuestCPUs = nil
			}
			was := w.watch.in
			w.step(time.Duration(r.Int64N(int64(40 * time.Second))))
			if is := w.watch.in; is != was && !slices.ContainsFunc(arrows, func(a arrow) bool { return a.from == was && a.to == is }) {
				t.Fatalf("seed %d: %s became %s", seed, was, is)
			}
			if o := w.watch.Owner(w.at, noon); o.Since.After(noon) || o.Present != o.State.There() {
				t.Fatalf("seed %d: it says %+v", seed, o)
			}
		}
		w.policy.Claimed = false
		w.load(4)
		w.typed = w.at
		w.pass(13 * time.Minute)
		if w.watch.in != fleet.OwnerPresent {
			t.Fatalf("seed %d: after minutes of noise the owner is %s", seed, w.watch.in)
		}
		w.load(0)
		w.pass(16 * time.Minute)
		if w.watch.in != fleet.OwnerAbsent {
			t.Fatalf("seed %d: after minutes of silence the owner is %s", seed, w.watch.in)
		}
	}
}

// The presets that a policy may name are those that there are.
func TestPresetsThatFleetNames(t *testing.T) {
	if named := slices.Sorted(slices.Values(append(slices.Clone(fleet.Presets), ""))); !slices.Equal(named, slices.Sorted(maps.Keys(presets))) {
		t.Errorf("fleet names %q, there are %q", named, slices.Sorted(maps.Keys(presets)))
	}
}
