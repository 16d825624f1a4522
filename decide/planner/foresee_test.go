package planner

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// profiled makes every host report this profile for its guests.
func (w *world) profiled(p fleet.Profile) {
	for id, h := range w.s.Hosts {
		h.Facts.Guests = map[fleet.GuestID]fleet.GuestFacts{}
		for g := range w.guests[id] {
			h.Facts.Guests[g] = fleet.GuestFacts{Run: fleet.Running, ResidentBytes: 300 << 20, CPUs: 1, Profile: &p}
		}
		w.s.Hosts[id] = h
	}
}

// idleProfile changes almost no memory; wild changes all of it faster than any link.
func idleProfile(at time.Time) fleet.Profile {
	return fleet.Profile{At: at, MemoryBytes: 512 << 20, FilledBytes: 300 << 20, Changed: []fleet.Changed{{Within: time.Second, Bytes: 1 << 20}}}
}

func wild(at time.Time) fleet.Profile {
	return fleet.Profile{At: at, MemoryBytes: 512 << 20, FilledBytes: 500 << 20, Changed: []fleet.Changed{{Within: 100 * time.Millisecond, Bytes: 400 << 20}}}
}

func TestForeseeChangesNothing(t *testing.T) {
	w, j := running(t, 4, "host1", "host2", "host3")
	w.profiled(idleProfile(w.now))
	before := w.s
	admin := fleet.Caller{Admin: true}
	for what, r := range map[string]fleet.Request{
		"a guest": {Verb: fleet.Migrate, Guest: "j1g0", By: admin},
		"a job":   {Verb: fleet.Migrate, Job: j, By: admin},
		"a host":  {Verb: fleet.Drain, Host: "host1", By: admin},
	} {
		f, err := w.p.Foresee(w.s, r)
		again, _ := w.p.Foresee(w.s, r)
		if err != nil || !reflect.DeepEqual(f, again) {
			t.Fatalf("%s: %v\n%+v\n%+v", what, err, f, again)
		}
		want := map[string]int{"a guest": 1, "a job": 4, "a host": 2}[what]
		if len(f.Migrations) != want || !f.Converges || len(f.Notes) != 0 {
			t.Errorf("%s: %+v", what, f)
		}
		sum := int64(0)
		for _, m := range f.Migrations {
			sum += m.Prediction.Bytes.Value
			if m.From == m.To || m.From != w.s.Guests[m.Guest].Home || m.Prediction.Profile == nil || m.Prediction.Kind != fleet.VM {
				t.Errorf("%s: %+v", what, m)
			}
		}
		if f.Bytes.Value != sum || f.Total.Value < f.Migrations[0].Prediction.Total.Value {
			t.Errorf("%s: together %+v", what, f)
		}
	}
	if !reflect.DeepEqual(before, w.s) {
		t.Error("foreseeing changed the snapshot")
	}
}

func TestForeseeRefusesWhatStepWould(t *testing.T) {
	w, j := running(t, 1, "host1", "host2")
	stranger := fleet.Caller{UID: 77}
	for _, c := range []struct {
		r    fleet.Request
		want string
	}{
		{fleet.Request{Verb: fleet.Migrate, Guest: "j9g9"}, "no guest"},
		{fleet.Request{Verb: fleet.Migrate}, "no guest"},
		{fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host1", By: fleet.Caller{Admin: true}}, "already"},
		{fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", By: stranger}, "another user"},
		{fleet.Request{Verb: fleet.Migrate, Job: j, By: stranger}, "another user"},
		{fleet.Request{Verb: fleet.Migrate, Job: "j8"}, "no job"},
		{fleet.Request{Verb: fleet.Drain, Host: "host1", By: stranger}, "administrator"},
		{fleet.Request{Verb: fleet.Drain, Host: "mars", By: fleet.Caller{Admin: true}}, "no host"},
		{fleet.Request{Verb: fleet.Drain, Host: "host2", By: fleet.Caller{Admin: true}}, "no guest would move"},
		{fleet.Request{Verb: fleet.Cancel, Job: j}, "ask about migrate or drain"},
	} {
		f, err := w.p.Foresee(w.s, c.r)
		var no *Refusal
		if !errors.As(err, &no) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v gave %+v, %v, want %q", c.r, f, err, c.want)
		}
	}
}

func TestForeseeSaysWhatItDoesNotKnow(t *testing.T) {
	w, _ := running(t, 1, "host1", "host2")
	ask := fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", By: fleet.Caller{Admin: true}}
	says := func(want string) fleet.Prediction {
		t.Helper()
		f, err := w.p.Foresee(w.s, ask)
		if err != nil || len(f.Migrations) != 1 || !strings.Contains(strings.Join(f.Notes, "\n"), want) {
			t.Fatalf("%+v, %v lacks %q", f, err, want)
		}
		return f.Migrations[0].Prediction
	}
	guess := says("has not been sampled")
	if guess.Profile != nil || guess.Bytes.Value == 0 {
		t.Errorf("the guess is %+v", guess)
	}
	w.profiled(idleProfile(w.now))
	known := says("")
	if float64(known.Total.High)/float64(known.Total.Low) >= float64(guess.Total.High)/float64(guess.Total.Low) {
		t.Errorf("a guess (%+v) is as narrow as what is known (%+v)", guess.Total, known.Total)
	}
	w.profiled(idleProfile(w.now.Add(-time.Hour)))
	says("was last sampled 1h0m0s ago")
	w.profiled(wild(w.now))
	ask.Limits.Mode = fleet.PreCopy
	if p := says(""); p.Converges || p.Why == "" || p.Help == "" {
		t.Errorf("%+v", p)
	}
	w.cannotPostCopy("host2")
	lines, err := w.p.Explain(w.s, Subject{Guest: "j1g0"})
	if err != nil || !strings.Contains(strings.Join(lines, "\n"), "would not converge") {
		t.Errorf("explained: %q, %v", lines, err)
	}
}

// TestPredictionsAreKept: every migration keeps its prediction beside its outcome,
// whatever request began it, and later ones learn from it.
func TestPredictionsAreKept(t *testing.T) {
	w, _ := running(t, 2, "host1", "host2", "host3")
	w.profiled(idleProfile(w.now))
	w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host3"})
	first := w.s.Migrations["m1.j1g0"]
	if first.Predicted == nil || first.Predicted.Total.Value <= 0 || first.Predicted.Limits.Rounds == 0 || !strings.Contains(first.Predicted.Basis, "no move yet") {
		t.Fatalf("%+v", first.Predicted)
	}
	w.answerAll()
	ended := w.s.Migrations["m1.j1g0"]
	if ended.Phase != fleet.Finished || !reflect.DeepEqual(ended.Predicted, first.Predicted) {
		t.Fatalf("%+v", ended)
	}
	w.profiled(idleProfile(w.now))
	w.must(fleet.Request{Verb: fleet.Drain, Host: "host2"})
	if m := w.s.Migrations["m2.j1g1"]; m.Predicted == nil {
		t.Fatalf("%+v", m)
	}
	score := w.p.Score(w.s)
	if score.Verdicts != 1 || score.Right != 1 {
		t.Errorf("%+v", score)
	}
}
