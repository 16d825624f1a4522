package cost

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pagurus/fleet"
)

const mib = 1 << 20

// steady dirties rate MiB a second, in a cycle of set MiB.
func steady(filled, rate, set float64) fleet.Profile {
	p := fleet.Profile{MemoryBytes: int64(filled * mib), FilledBytes: int64(filled * mib)}
	for _, s := range []float64{0.1, 0.4, 1.3, 4, 60} {
		p.Changed = append(p.Changed, fleet.Changed{
			Within: time.Duration(s * float64(time.Second)), Bytes: int64(min(rate*s, set) * mib),
		})
	}
	return p
}

// plain is a model with round numbers.
func plain() Model {
	return Model{bandwidth: 100 * mib, slack: 1, overhead: time.Second, rest: 10 * time.Millisecond, rise: 1}
}

func about(t *testing.T, what string, got, want time.Duration) {
	t.Helper()
	if d := got - want; d > want/50+time.Millisecond || -d > want/50+time.Millisecond {
		t.Errorf("%s is %s, want %s", what, got, want)
	}
}

func TestPredictByHand(t *testing.T) {
	// 1000 MiB at 100 MiB/s: 10 s, and 1.3 s of scanning. In 11.3 s the guest dirties its
	// whole set of 20 MiB: 0.2 s, in which it dirties 2 MiB: 20 ms, which is allowed. It
	// continues until the switch: 20 ms leave 0.2 MiB, then rounds of 5 ms 0.05 MiB,
	// which is half a millisecond.
	got := plain().Predict(steady(1000, 10, 20), Link{})
	about(t, "total", got.Total.Value, 12520*time.Millisecond)
	about(t, "downtime", got.Downtime.Value, 10500*time.Microsecond)
	if got.Bytes.Value>>20 != 1022 || got.Rounds.Value != 2 || !got.Converges || got.Why != "" {
		t.Errorf("%+v", got)
	}
	// The same with two copies on the link, and with half the bandwidth as a limit.
	half := plain().Predict(steady(1000, 10, 20), Link{Share: 2})
	capped := plain().Predict(steady(1000, 10, 20), Link{Limits: fleet.Limits{BytesPerSecond: 50 * mib}})
	about(t, "total of two together", half.Total.Value, 22820*time.Millisecond)
	// With a limit the 1.3 s of scanning take no additional time.
	about(t, "total at half the speed", capped.Total.Value, 21520*time.Millisecond)
	// Empty memory is scanned, not sent.
	p := steady(100, 0, 0)
	p.MemoryBytes = 768 * mib
	about(t, "total of a guest mostly empty", plain().Predict(p, Link{}).Total.Value, 3*time.Second)
}

func TestWorkingSetSaturates(t *testing.T) {
	// By its rate alone (200 MiB/s over 100) it would not converge. Its set of 4 MiB can
	// be sent in 40 ms, in which it dirties 1.6 MiB: 16 ms.
	got := plain().Predict(steady(500, 200, 4), Link{})
	if !got.Converges || got.Rounds.Value != 1 {
		t.Errorf("%+v", got)
	}
	about(t, "downtime", got.Downtime.Value, 26*time.Millisecond)
}

func TestWhyNotAndWhatHelps(t *testing.T) {
	p := steady(500, 250, 300)
	got := plain().Predict(p, Link{})
	if got.Converges || !strings.Contains(got.Why, " MiB changed") || got.Rounds.Value != usualRounds {
		t.Fatalf("%+v", got)
	}
	about(t, "the downtime if it switched all the same", got.Downtime.Value, 2970*time.Millisecond)
	t.Log(got.Why, "/", got.Help)
	if !strings.Contains(got.Help, "a downtime of 3.3s allowed") || !strings.Contains(got.Help, " a second ") {
		t.Errorf("help is %q", got.Help)
	}
	if again := plain().Predict(p, Link{Limits: fleet.Limits{Downtime: 3300 * time.Millisecond}}); !again.Converges {
		t.Errorf("what was said to help did not: %+v", again)
	}
	fast := plain()
	fast.bandwidth = 1000 * mib
	capped := Link{Limits: fleet.Limits{BytesPerSecond: 100 * mib}}
	if got := fast.Predict(p, capped); got.Converges || !strings.Contains(got.Help, "ceiling") {
		t.Errorf("under a ceiling: %+v", got)
	}
	if got := fast.Predict(p, Link{Share: 9}); got.Converges || !strings.Contains(got.Help, "alone") {
		t.Errorf("nine together: %+v", got)
	}
}

func TestStretchRise(t *testing.T) {
	m := plain()
	tame := m.Predict(steady(1000, 10, 1000), Link{})
	m.rise = 3
	wild := m.Predict(steady(1000, 10, 1000), Link{})
	if wild.Bytes.Value <= tame.Bytes.Value {
		t.Errorf("a guest that dirties three times as fast sends %d, otherwise %d", wild.Bytes.Value, tame.Bytes.Value)
	}
}

func profiles(t *rapid.T, label string) fleet.Profile {
	p := fleet.Profile{
		MemoryBytes: rapid.Int64Range(0, 1<<42).Draw(t, label+" memory"),
		FilledBytes: rapid.Int64Range(0, 1<<40).Draw(t, label+" filled"),
	}
	for range rapid.IntRange(0, 6).Draw(t, label+" points") {
		p.Changed = append(p.Changed, fleet.Changed{
			Within: time.Duration(rapid.Int64Range(0, int64(10*time.Second)).Draw(t, "within")),
			Bytes:  rapid.Int64Range(0, 1<<40).Draw(t, "changed"),
		})
	}
	return p
}

func TestMoreBandwidthNeverCostsMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := profiles(t, "guest")
		rate := rapid.Int64Range(1<<10, 1<<36).Draw(t, "rate")
		more := rapid.Float64Range(1, 100).Draw(t, "times")
		link := func(rate int64) Link {
			return Link{Limits: fleet.Limits{BytesPerSecond: rate, Rounds: rapid.IntRange(1, 60).Draw(t, "rounds")}}
		}
		m := Model{bandwidth: 1 << 40}
		l := link(rate)
		slow := m.Predict(p, l)
		l.Limits.BytesPerSecond = int64(float64(rate) * more)
		fast := m.Predict(p, l)
		if fast.Total.Value > slow.Total.Value+time.Microsecond || fast.Bytes.Value > slow.Bytes.Value+1 || slow.Converges && !fast.Converges {
			t.Fatalf("slow %+v\nfast %+v", slow, fast)
		}
		if fast.Converges && fast.Downtime.Value > l.known().Limits.Downtime+usualRest+time.Microsecond {
			t.Fatalf("it converges and is suspended for %s", fast.Downtime.Value)
		}
	})
}

func TestIntervalHoldsThePoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := Fit(moves(t), Subject{Kind: fleet.VM, Job: "j1", From: "a", To: "b"})
		sound(t, m.Predict(profiles(t, "guest"), links(t)))
	})
}

// links may be invalid.
func links(t *rapid.T) Link {
	return Link{Share: rapid.IntRange(-3, 300).Draw(t, "share"), Limits: fleet.Limits{
		Downtime:       time.Duration(rapid.Int64Range(-10, int64(time.Minute)).Draw(t, "downtime")),
		Rounds:         rapid.IntRange(-3, 5000).Draw(t, "rounds"),
		BytesPerSecond: rapid.Int64Range(-5, 1<<40).Draw(t, "limit"),
	}}
}

func sound(t *rapid.T, p fleet.Prediction) {
	ordered := func(low, value, high int64) bool { return 0 <= low && low <= value && value <= high }
	if !ordered(int64(p.Total.Low), int64(p.Total.Value), int64(p.Total.High)) ||
		!ordered(int64(p.Downtime.Low), int64(p.Downtime.Value), int64(p.Downtime.High)) ||
		!ordered(p.Bytes.Low, p.Bytes.Value, p.Bytes.High) ||
		!ordered(int64(p.Rounds.Low), int64(p.Rounds.Value), int64(p.Rounds.High)) {
		t.Fatalf("%+v", p)
	}
	if p.Basis == "" || !p.Converges && (p.Why == "" || p.Help == "") {
		t.Fatalf("it does not say why: %+v", p)
	}
}

// TestModesByHand: each mode with a guest that pre-copy cannot move.
func TestModesByHand(t *testing.T) {
	// 1000 MiB take 11.3 s, in which the guest changes its set of 200 MiB. That takes 2 s
	// more, in which it changes 200 MiB again, and so on.
	wild := steady(1000, 100, 200)
	in := func(m fleet.Mode) fleet.Prediction { return plain().Predict(wild, Link{Limits: fleet.Limits{Mode: m}}) }
	if pre := in(fleet.PreCopy); pre.Converges {
		t.Errorf("pre-copy: %+v", pre)
	}
	post := in(fleet.PostCopy)
	about(t, "post-copy is ready", post.Ready, 12300*time.Millisecond)
	about(t, "post-copy is over", post.Total.Value, 14300*time.Millisecond)
	about(t, "post-copy suspends", post.Downtime.Value, 10*time.Millisecond)
	stop := in(fleet.StopAndCopy)
	about(t, "stop-and-copy is ready", stop.Ready, time.Second)
	about(t, "stop-and-copy is over", stop.Total.Value, 12300*time.Millisecond)
	about(t, "stop-and-copy suspends", stop.Downtime.Value, 11310*time.Millisecond)
	if !post.Converges || !stop.Converges || post.Bytes.Value>>20 != 1200 || stop.Bytes.Value>>20 != 1000 {
		t.Errorf("%+v, %+v", post, stop)
	}
}

// TestGrown: memory that a program took after the profile must also be sent.
func TestGrown(t *testing.T) {
	p := steady(400, 1, 1)
	p.FilledBytes, p.Resident, p.Cache = 90*mib, 150*mib, &fleet.Cache{Empties: true, FreeBytes: 300 * mib}
	for _, c := range []struct {
		name                         string
		resident, most, filled, free int64
	}{
		{"as it was", 150, 400, 90, 300},
		{"less", 100, 400, 90, 300},
		{"unknown", 0, 400, 90, 300},
		{"a program's 200", 350, 400, 290, 100},
		{"no more than it has", 900, 400, 400, 0},
		{"of nonsense", 350, 10, 90, 300},
	} {
		got := Grown(p, c.resident*mib, c.most*mib)
		if got.FilledBytes != c.filled*mib || got.Cache.FreeBytes != c.free*mib || got.MemoryBytes != 400*mib {
			t.Errorf("%s: %d MiB filled, %d free of %d", c.name, got.FilledBytes/mib, got.Cache.FreeBytes/mib, got.MemoryBytes/mib)
		}
	}
	if p.Cache.FreeBytes != 300*mib {
		t.Error("the look itself was changed")
	}
	if few, many := plain().Predict(p, Link{}), plain().Predict(Grown(p, 350*mib, 400*mib), Link{}); many.Bytes.Value < 2*few.Bytes.Value {
		t.Errorf("%d bytes are said of what has grown, %d before", many.Bytes.Value, few.Bytes.Value)
	}
	if p.Resident = 0; Grown(p, 350*mib, 400*mib).FilledBytes != p.FilledBytes {
		t.Error("a look that does not say what was occupied was changed")
	}
}
