package cost

import (
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pagurus/fleet"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// past makes an arrived move whose outcome is that of the model truth, times a factor.
func past(i int, truth Model, p fleet.Profile, l Link, off float64) fleet.Migration {
	truth, l = truth.known(), l.known()
	c := truth.followRounds(p, l)
	said := Model{}.Predict(p, l)
	said.Kind, said.Profile = fleet.VM, &p
	total := seconds((truth.overhead + c.took).Seconds() * off)
	begun := t0.Add(time.Duration(i) * time.Minute)
	return fleet.Migration{
		ID: fleet.MigrationID(fmt.Sprint("m", i)), Guest: "j1g0", Job: "j1", From: "a", To: "b", Phase: fleet.Finished, Predicted: &said,
		Entered: []fleet.Entered{{Phase: fleet.Preparing, At: begun}, {Phase: fleet.Finished, At: begun.Add(total)}},
		Cost: fleet.Progress{Rounds: c.rounds, TotalBytes: p.MemoryBytes, SentBytes: int64(c.sent), Elapsed: c.took,
			Downtime: seconds((truth.rest + c.downtime).Seconds() * off)},
	}
}

// programs are dissimilar profiles.
func programs() []fleet.Profile {
	return []fleet.Profile{steady(200, 1, 1), steady(300, 10, 100), steady(250, 30, 60), steady(400, 60, 120), steady(150, 5, 5), steady(350, 20, 200)}
}

// TestFitFindsTheTruth: bandwidth, overhead and rise differ from the usual ones. After
// some moves of other programs, another program's is predicted correctly.
func TestFitFindsTheTruth(t *testing.T) {
	truth := Model{bandwidth: 80 * mib, slack: 6 * mib, overhead: 3 * time.Second, rest: 25 * time.Millisecond, rise: 2.5}
	var history []fleet.Migration
	for i, p := range append(programs(), programs()...) {
		history = append(history, past(i, truth, p, Link{Limits: fleet.Limits{BytesPerSecond: int64(i%2) * 40 * mib}}, 1))
	}
	m := Fit(history, Subject{Kind: fleet.VM, Job: "j9", From: "a", To: "b"})
	t.Logf("%+v", m)
	fresh := steady(280, 6, 80)
	for _, l := range []Link{{}, {Limits: fleet.Limits{BytesPerSecond: 40 * mib}}} {
		got := m.Predict(fresh, l)
		c := truth.followRounds(fresh, l.known())
		want := truth.overhead + c.took
		if off := math.Abs(got.Total.Value.Seconds()/want.Seconds() - 1); off > 0.1 {
			t.Errorf("total is predicted %s, and is %s", got.Total.Value, want)
		}
		if got.Total.Low > want || got.Total.High < want {
			t.Errorf("%s is outside of %+v", want, got.Total)
		}
		if before := (Model{}).Predict(fresh, l); math.Abs(before.Total.Value.Seconds()/want.Seconds()-1) < 0.1 {
			t.Errorf("nothing had to be learnt for %s: %s", want, before.Total.Value)
		}
	}
}

// TestIntervalsNarrow: the interval is narrow after many correct predictions, wide after
// few, and includes wrong ones.
func TestIntervalsNarrow(t *testing.T) {
	width := func(n int, off func(int) float64) float64 {
		var history []fleet.Migration
		for i := range n {
			history = append(history, past(i, plain(), steady(200, 1, 1), Link{}, off(i)))
		}
		s := Fit(history, Subject{Kind: fleet.VM, Job: "j1", From: "a", To: "b"}).known().total
		return s.high / s.low
	}
	exact := func(int) float64 { return 1 }
	none, few, many := width(0, exact), width(5, exact), width(60, exact)
	if !(none > few && few > many && many < 1.2) {
		t.Errorf("width with no move %.2f, with 5 %.2f, with 60 %.2f", none, few, many)
	}
	if noisy := width(60, func(i int) float64 { return 1 + 0.5*float64(i%11)/10 }); noisy < 1.35 {
		t.Errorf("outcomes half as long again leave an interval of %.2f", noisy)
	}
}

// TestOtherJobsAreFew: many moves of a few other jobs say little about a job that has not
// moved; its own moves say much.
func TestOtherJobsAreFew(t *testing.T) {
	width := func(jobs int, job fleet.JobID) float64 {
		var history []fleet.Migration
		for i := range 60 {
			m := past(i, plain(), steady(200, 1, 1), Link{}, 1)
			m.Job = fleet.JobID(fmt.Sprint("j", i%jobs))
			history = append(history, m)
		}
		s := Fit(history, Subject{Kind: fleet.VM, Job: job, From: "a", To: "b"}).known().total
		return s.high / s.low
	}
	one, many, own := width(1, "other"), width(30, "other"), width(2, "j1")
	if !(one > 3 && many < 1.2 && own < 1.2) {
		t.Errorf("width after 60 moves of one other job %.2f, of 30 others %.2f, of its own %.2f", one, many, own)
	}
}

// TestCeilingOfCompressed: a compressed copy exceeds its limit, an uncompressed one stays
// below, and they are learnt separately.
func TestCeilingOfCompressed(t *testing.T) {
	truth := Model{bandwidth: 200 * mib, slack: 2 * mib, overrun: 9 * mib, packed: 0.5}
	plainly, packed := Link{Limits: fleet.Limits{BytesPerSecond: 30 * mib}}, Link{Limits: fleet.Limits{BytesPerSecond: 30 * mib, Compress: fleet.CompressOn}}
	var history []fleet.Migration
	for i, p := range programs() {
		history = append(history, past(2*i, truth, p, plainly, 1))
		m := past(2*i+1, truth, p, packed, 1)
		m.Cost.CopiedBytes = 2 * m.Cost.SentBytes
		history = append(history, m)
	}
	m := Fit(history, Subject{Kind: fleet.VM, Job: "j9", From: "a", To: "b"})
	for _, l := range []Link{plainly, packed} {
		got, _ := m.carried(l.known())
		want, _ := truth.known().carried(l.known())
		if math.Abs(got/want-1) > 0.05 {
			t.Errorf("compressed %t: %.1f MiB/s, want %.1f", l.Limits.Compress == fleet.CompressOn, got/mib, want/mib)
		}
	}
}

// TestCoverage: of outcomes with the same distribution as past ones, nine in ten are
// inside the interval.
func TestCoverage(t *testing.T) {
	off := func(i int) float64 { return math.Exp(0.3 * math.Sin(float64(i)*12.9898)) } // practically without a pattern
	inside, n := 0, 0
	var history []fleet.Migration
	for i := range 150 {
		p := programs()[i%6]
		m := past(i, plain(), p, Link{}, off(i))
		if i >= 30 {
			said := Fit(history, Subject{Kind: fleet.VM, Job: "j9", From: "a", To: "b"}).Predict(p, Link{})
			m.Predicted.Total, m.Predicted.Downtime = said.Total, said.Downtime
			n++
			if got := Total(m); said.Total.Low <= got && got <= said.Total.High {
				inside++
			}
		}
		history = append(history, m)
	}
	if share := float64(inside) / float64(n); share < 0.85 {
		t.Errorf("%.0f %% of outcomes are inside", share*100)
	}
	score := Score(history[30:])
	if math.Abs(score.Total.Coverage-float64(inside)/float64(n)) > 1e-9 || score.Moves != n || score.Right != n {
		t.Errorf("the score says %+v", score)
	}
}

func TestScore(t *testing.T) {
	m := past(1, plain(), steady(200, 1, 1), Link{}, 1)
	got := Total(m)
	m.Predicted.Total = fleet.Range[time.Duration]{Value: 2 * got, Low: got / 2, High: 4 * got}
	m.Predicted.Downtime = fleet.Range[time.Duration]{Value: m.Cost.Downtime / 2, Low: 0, High: m.Cost.Downtime * 3 / 4}
	lost := m
	lost.Phase, lost.Cost.Rounds = fleet.Aborted, 99
	cancelled := lost
	cancelled.Cost.Rounds = 3
	unforeseen := m
	unforeseen.Predicted = nil
	s := Score([]fleet.Migration{m, lost, cancelled, unforeseen, {}})
	want := fleet.Calibration{Moves: 1, Verdicts: 2, Right: 1, Total: fleet.Fitness{MedianError: 1, Bias: 0.5, Coverage: 1}, Bytes: s.Bytes}
	want.Downtime = s.Downtime
	if !reflect.DeepEqual(s, want) || math.Abs(s.Downtime.MedianError-0.5) > 0.01 || s.Downtime.Coverage != 0 {
		t.Errorf("%+v", s)
	}
	if got := Score(nil); got != (fleet.Calibration{}) {
		t.Errorf("of no moves: %+v", got)
	}
}

// TestSameJobCountsMost: other jobs no longer matter once a job has moved often enough.
func TestSameJobCountsMost(t *testing.T) {
	var history []fleet.Migration
	for i := range 40 {
		m := past(i, plain(), steady(200, 1, 1), Link{}, 1)
		if m.Job = "j2"; i%4 == 0 {
			m = past(i, plain(), steady(200, 1, 1), Link{}, 3)
		}
		history = append(history, m)
	}
	of := func(j fleet.JobID) float64 {
		return Fit(history, Subject{Kind: fleet.VM, Job: j, From: "a", To: "b"}).known().total.mid
	}
	if mine, other := of("j1"), of("j2"); mine < 1.5*other {
		t.Errorf("the job that takes three times as long is foreseen %.2f, the other %.2f", mine, other)
	}
}

// TestGangsTeachOfGangs: the times of gangs are used for gangs only. Until a gang has
// moved, those of single guests are used.
func TestGangsTeachOfGangs(t *testing.T) {
	p, gang := steady(200, 1, 1), Link{Share: 2}
	history := func(n int, l Link, off float64) (out []fleet.Migration) {
		for i := range n {
			out = append(out, past(i, plain(), p, l, off))
		}
		return out
	}
	said := func(past []fleet.Migration, l Link) float64 {
		return Fit(past, Subject{Kind: fleet.VM, Job: "j9", From: "a", To: "b"}).Predict(p, l).Total.Value.Seconds()
	}
	slow := history(30, gang, 3)
	took := Total(slow[0]).Seconds()
	if got := said(slow, gang); math.Abs(got/took-1) > 0.1 {
		t.Errorf("gangs that took %.2f s are expected to take %.2f s", took, got)
	}
	usual := Total(past(0, plain(), p, Link{}, 1)).Seconds()
	if got := said(slow, Link{}); got > 1.3*usual {
		t.Errorf("a move alone is expected to take %.2f s after slow gangs, and takes %.2f s", got, usual)
	}
	alone := history(30, Link{}, 3)
	if took, got := Total(alone[0]).Seconds(), said(alone, gang); got < took {
		t.Errorf("a gang is expected to take %.2f s where guests alone took %.2f s", got, took)
	}
}

// TestOwnersTakeTheCPU: moves for owners and other moves are learnt separately, however
// many of the other kind there are.
func TestOwnersTakeTheCPU(t *testing.T) {
	p := steady(200, 1, 1)
	var history []fleet.Migration
	for i := range 40 {
		m := past(i, plain(), p, Link{}, 1)
		if i >= 38 {
			m = past(i, plain(), p, Link{}, 4)
			m.Predicted.ForOwner = true
		}
		history = append(history, m)
	}
	for _, from := range []fleet.HostID{"a", "c"} { // no move from c yet
		about := Subject{Kind: fleet.VM, Job: "j9", From: from, To: "b"}
		other := Fit(history, about).Predict(p, Link{}).Total.Value
		about.ForOwner = true
		owned := Fit(history, about).Predict(p, Link{}).Total.Value
		if usual := Total(history[0]); other > usual*11/10 || owned < usual*2 {
			t.Errorf("from %s: %s for an owner, %s otherwise, where moves took %s", from, owned, other, usual)
		}
		learnt := Learn(history)
		for range 2 {
			if got := learnt.Fit(about).Predict(p, Link{}).Total.Value; got != owned {
				t.Errorf("from %s: asked again %s, before %s", from, got, owned)
			}
			learnt.Fit(Subject{Kind: fleet.VM, Job: "j9", From: from, To: "b"})
		}
	}
}

// TestTheFirstOwner: until a move for an owner was seen, such a move is expected to take
// longer than others.
func TestTheFirstOwner(t *testing.T) {
	p := steady(200, 1, 1)
	var history []fleet.Migration
	for i := range 10 {
		for _, past := range [][]fleet.Migration{nil, history} {
			about := Subject{Kind: fleet.VM, Job: "j9", From: "a", To: "b"}
			usual := Fit(past, about).Predict(p, Link{}).Total.Value
			about.ForOwner = true
			if got := Fit(past, about).Predict(p, Link{}).Total.Value; got < usual*5/4 || got > usual*2 {
				t.Errorf("after %d moves: %s for an owner, %s otherwise", len(past), got, usual)
			}
		}
		history = append(history, past(i, plain(), p, Link{}, 1))
	}
	m := past(10, plain(), p, Link{}, 1)
	m.Predicted.ForOwner = true
	history = append(history, m)
	about := Subject{Kind: fleet.VM, Job: "j9", From: "a", To: "b"}
	usual := Fit(history, about)
	about.ForOwner = true
	if got := Fit(history, about); got.bandwidth != usual.bandwidth {
		t.Errorf("a move for an owner was as fast as others, and yet %.0f is believed where they had %.0f", got.bandwidth, usual.bandwidth)
	}
}

// moves are past moves, some of them invalid.
func moves(t *rapid.T) []fleet.Migration {
	var out []fleet.Migration
	any64 := rapid.Int64()
	for i := range rapid.IntRange(0, 30).Draw(t, "moves") {
		if rapid.Bool().Draw(t, "real") {
			p := profiles(t, "past")
			out = append(out, past(i, Model{}, p, links(t), rapid.Float64Range(0.1, 10).Draw(t, "off")))
			continue
		}
		m := fleet.Migration{
			ID: "m", Job: "j1", From: "a", To: "b", Phase: rapid.SampledFrom([]fleet.Phase{fleet.Finished, fleet.Aborted, fleet.Copying}).Draw(t, "phase"),
			Cost: fleet.Progress{Rounds: rapid.Int().Draw(t, "rounds"), TotalBytes: any64.Draw(t, "total"), SentBytes: any64.Draw(t, "sent"),
				Elapsed: time.Duration(any64.Draw(t, "elapsed")), Downtime: time.Duration(any64.Draw(t, "down"))},
		}
		for range rapid.IntRange(0, 3).Draw(t, "entered") {
			m.Entered = append(m.Entered, fleet.Entered{At: t0.Add(time.Duration(any64.Draw(t, "at")))})
		}
		if rapid.Bool().Draw(t, "predicted") {
			p := fleet.Profile{MemoryBytes: any64.Draw(t, "memory"), FilledBytes: any64.Draw(t, "filled"),
				Changed: []fleet.Changed{{Within: time.Duration(any64.Draw(t, "within")), Bytes: any64.Draw(t, "bytes")}}}
			m.Predicted = &fleet.Prediction{Kind: fleet.VM, Converges: true, Profile: &p, Limits: links(t).Limits, Share: rapid.Int().Draw(t, "share"),
				Total: fleet.Range[time.Duration]{Value: time.Duration(any64.Draw(t, "value"))}}
		}
		out = append(out, m)
	}
	return out
}

func TestNonsenseIsNoPanic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		history := moves(t)
		m := Fit(history, Subject{Kind: fleet.VM, Job: "j1", From: "a", To: "b"})
		if again := Fit(history, Subject{Kind: fleet.VM, Job: "j1", From: "a", To: "b"}); m != again {
			t.Fatalf("the same past taught %+v and %+v", m, again)
		}
		any64 := rapid.Int64()
		p := fleet.Profile{MemoryBytes: any64.Draw(t, "m"), FilledBytes: any64.Draw(t, "f"),
			Changed: []fleet.Changed{{Within: time.Duration(any64.Draw(t, "w")), Bytes: any64.Draw(t, "b")}}}
		sound(t, m.Predict(p, links(t)))
		s := Score(history)
		for _, f := range []fleet.Fitness{s.Total, s.Downtime, s.Bytes} {
			if math.IsNaN(f.MedianError) || math.IsNaN(f.Bias) || f.Coverage < 0 || f.Coverage > 1 {
				t.Fatalf("%+v", s)
			}
		}
	})
}

// TestContainersHaveLongerDowntime: before anything was learnt about them.
func TestContainersHaveLongerDowntime(t *testing.T) {
	p := steady(50, 1, 1)
	vm := Fit(nil, Subject{Kind: fleet.VM}).Predict(p, Link{}).Downtime
	container := Fit(nil, Subject{Kind: fleet.Container}).Predict(p, Link{}).Downtime
	if more := container.Value - vm.Value; more != usualRestOfContainers-usualRest || container.Low >= container.Value || container.High <= container.Value {
		t.Errorf("a container is suspended for %+v, a vm for %+v", container, vm)
	}
}
