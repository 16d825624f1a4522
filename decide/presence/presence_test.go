package presence

import (
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

// world is a host whose sensors say what a test wants.
type world struct {
	t      *testing.T
	policy fleet.OwnerPolicy
	at     time.Duration
	watch  Watch
	sample fleet.OwnerSample
	typed  time.Duration // when the last input came
	moves  []fleet.OwnerState
}

// idleFor makes a host whose owner has long been away.
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

// step lets time pass and takes a sample.
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

// pass lets time pass by the second.
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

// Every state has a way to present and a way to absent, no line is there twice,
// and none leads to where it comes from.
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
	w.load(0.2) // less, but not little enough
	w.pass(time.Minute)
	w.is()
	w.load(0)
	w.pass(9 * time.Second)
	w.is()
	w.pass(2 * time.Second)
	w.is(fleet.OwnerLeaving)
	w.load(1)
	w.step(time.Second)
	w.is(fleet.OwnerPresent) // who was here a moment ago is not asked to prove it
	w.load(0)
	w.pass(15*time.Minute - 2*time.Second)
	w.is(fleet.OwnerLeaving)
	w.pass(3 * time.Second)
	w.is(fleet.OwnerAbsent)
}

// One touch of the mouse makes guests give way and moves nobody.
func TestOneTouch(t *testing.T) {
	w := idleFor(t, time.Hour, fleet.OwnerPolicy{})
	w.typed = w.at + time.Second
	w.pass(30 * time.Second)
	w.is(fleet.OwnerReturning, fleet.OwnerAbsent)
}

// An owner who comes and goes every few seconds is one who stays: one coming,
// one going.
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
	w.typed = w.at - 300*time.Millisecond // the key that said so
	w.policy.Claimed = false
	w.step(0)
	w.is(fleet.OwnerAbsent)
	w.pass(time.Minute)
	w.is()
	w.typed = w.at // but a key after that counts
	w.step(time.Second)
	w.is(fleet.OwnerReturning)
	// Who says they go while their program runs has forgotten it.
	w = idleFor(t, time.Hour, fleet.OwnerPolicy{Claimed: false})
	w.policy.Claimed = true
	w.load(3)
	w.pass(5 * time.Second)
	w.policy.Claimed = false
	w.pass(5 * time.Second)
	w.is(fleet.OwnerPresent)
	// A host without an owner can be claimed all the same, and is free at once.
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

// Sensors that are missing, or fail, or lie in ways that can be seen, make
// nobody come or stay.
func TestSensorsThatFail(t *testing.T) {
	w := idleFor(t, time.Hour, fleet.OwnerPolicy{})
	w.load(2)
	w.pass(time.Minute)
	w.is(fleet.OwnerReturning, fleet.OwnerPresent)
	w.sample = fleet.OwnerSample{Deaf: []string{"CPUs used by others: gone"}} // and with it the one sign
	w.pass(16 * time.Minute)
	w.is(fleet.OwnerLeaving, fleet.OwnerAbsent)
	o := w.watch.Owner(w.at, noon)
	if len(o.Deaf) != 1 || o.Present {
		t.Errorf("it says %+v", o)
	}
	// With no sensor at all a host is idle once it has been watched for long
	// enough, and not before.
	p := fleet.OwnerPolicy{Owned: true}
	watch := Next(Watch{}, p, Moment{At: time.Hour})
	if watch.in != fleet.OwnerLeaving {
		t.Errorf("a host nobody has seen is %s", watch.in)
	}
	if watch = Next(watch, p, Moment{At: time.Hour + 15*time.Minute}); watch.in != fleet.OwnerAbsent {
		t.Errorf("after a quarter of an hour without a sign it is %s", watch.in)
	}
}

// The wall clock may say what it likes.
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
		// The controller has a clock of its own.
		if o := w.watch.Owner(w.at, noon.Add(jump)).By(noon); o.ThereFor(noon) != w.at-w.watch.present {
			t.Errorf("by another clock the owner is there for %s, want %s", o.ThereFor(noon), w.at-w.watch.present)
		}
	}
}

func TestPresets(t *testing.T) {
	condor := idleFor(t, time.Hour, fleet.OwnerPolicy{Preset: "condor"})
	condor.load(0.6)
	condor.pass(119 * time.Second)
	condor.is() // two minutes of load first
	condor.pass(3 * time.Second)
	condor.is(fleet.OwnerReturning) // suspended
	condor.pass(10*time.Minute - 3*time.Second)
	condor.is()
	condor.pass(5 * time.Second)
	condor.is(fleet.OwnerPresent) // vacated
	condor = idleFor(t, time.Hour, fleet.OwnerPolicy{Preset: "condor"})
	condor.typed = condor.at
	condor.step(time.Second)
	condor.is(fleet.OwnerReturning)
	condor.pass(5 * time.Minute)
	condor.is(fleet.OwnerAbsent) // goes on
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
	for _, p := range append(Presets(), "", "no such") {
		if s := Of(fleet.OwnerPolicy{Preset: p, IdleAfter: time.Second}); s.IdleAfter != time.Second || s.LeavingAfter > time.Second || s.InputWithin > time.Second {
			t.Errorf("%q with an owner who is gone after a second: %+v", p, s)
		}
	}
}

// Every sign is named, and each alone is enough.
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
	// Waiting alone is our own guests' doing, for CPUs and for memory.
	w := idleFor(t, time.Hour, fleet.OwnerPolicy{})
	full := 1.0
	w.sample.Waiting, w.sample.Starved = &full, &full
	w.pass(time.Minute)
	w.is()
	w.sample.NonGuestCPUs = nil // nobody knows whether others work
	w.pass(time.Minute)
	w.is()
}

// Whatever the sensors say, from anywhere a quarter of an hour of silence ends
// in absent and a minute of noise in present, and it is left by the table only.
func TestAnything(t *testing.T) {
	for seed := range uint64(200) {
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
