package vacating

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func noticed(h fleet.Host, all ...fleet.EndNotice) fleet.Host {
	h.Facts.Notices = &fleet.EndNotices{Pending: all}
	return h
}

var (
	aws   = fleet.EndNotice{Kind: fleet.AWSNotice, ID: "a", Says: "Amazon takes it back", At: t0.Add(2 * time.Minute)}
	later = fleet.EndNotice{Kind: fleet.ShutdownNotice, ID: "b", Says: "it is switched off", At: t0.Add(time.Hour)}
	heard = fleet.Facts{SeenAt: t0, Connected: true}
)

// A notice has a host drain, whoever else wants it empty, and undoes only what it did itself when it is withdrawn.
func TestVacate(t *testing.T) {
	for name, c := range map[string]struct {
		is    fleet.Host
		drain fleet.HostState // after the notice is withdrawn
		own   bool            // the drain is for the notice
	}{
		"up":                   {fleet.Host{ID: "h", State: fleet.HostUp}, fleet.HostUp, true},
		"drained by a person":  {fleet.Host{ID: "h", State: fleet.HostDraining}, fleet.HostDraining, false},
		"drained for an owner": {fleet.Host{ID: "h", State: fleet.HostDraining, ForOwner: true}, fleet.HostUp, true},
		"drained for signs":    {fleet.Host{ID: "h", State: fleet.HostDraining, ForHealth: true}, fleet.HostUp, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := c.is
			h.Facts = heard
			if _, changed := Vacate(h, t0, t0); changed {
				t.Fatal("an agent that says nothing of notices")
			}
			if _, changed := Vacate(noticed(h), t0, t0); changed {
				t.Fatal("no notice")
			}
			silent := noticed(h, aws)
			silent.Facts.SeenAt, silent.Facts.Connected = t0.Add(-time.Hour), false
			if _, changed := Vacate(silent, t0, t0); changed {
				t.Fatal("a silent host")
			}
			h, changed := Vacate(noticed(h, later, aws), t0, t0)
			if !changed || h.State != fleet.HostDraining || h.ForNotice != c.own || h.ForOwner || h.ForHealth || !h.EmptyBy.Equal(aws.At) || !strings.Contains(Why(h), "Amazon takes it back at 03:06:05") {
				t.Fatalf("%v %+v %q", changed, h, Why(h))
			}
			jittered := aws
			jittered.At = aws.At.Add(time.Second)
			if _, changed := Vacate(noticed(h, jittered, later), t0, t0); changed {
				t.Error("clocks differ a little")
			}
			h, changed = Vacate(noticed(h, later), t0, t0)
			if !changed || !h.EmptyBy.Equal(later.At) || h.State != fleet.HostDraining {
				t.Errorf("one of two is withdrawn: %+v", h)
			}
			waived := Waive(h)
			if Differs(&waived) && c.is.State == fleet.HostUp {
				t.Errorf("a person knows better: %+v", waived)
			}
			h, changed = Vacate(noticed(h), t0, t0)
			if !changed || h.State != c.drain || h.ForNotice || !h.EmptyBy.IsZero() || Why(h) != "" {
				t.Errorf("withdrawn: %+v", h)
			}
			if Differs(&h) {
				t.Error("it differs for ever")
			}
		})
	}
}

// What a person waives counts no more, another notice does, and what was waived is forgotten with the notices.
func TestWaive(t *testing.T) {
	h := noticed(fleet.Host{ID: "h", State: fleet.HostUp, Facts: heard}, later)
	h, _ = Vacate(h, t0, t0)
	h = Waive(h)
	h.State = fleet.HostUp // by the request
	if _, changed := Vacate(h, t0, t0); changed {
		t.Fatal("a waived notice")
	}
	if h, changed := Vacate(noticed(h, later, aws), t0, t0); !changed || !h.EmptyBy.Equal(aws.At) || !h.ForNotice {
		t.Errorf("another: %+v", h)
	}
	if h, changed := Vacate(noticed(h), t0, t0); !changed || h.Waived != nil || h.State != fleet.HostUp {
		t.Errorf("none any more: %+v", h)
	}
}

func sec(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// moving is a case that can move and be saved.
func moving(job string, cpus int, risk, move, save float64) Case {
	return Case{Job: fleet.JobID(job), CPUs: cpus, Risk: sec(risk), Move: sec(move), Save: sec(save)}
}

func words(all []Verdict) string {
	var out []string
	for _, v := range all {
		late := ""
		if v.Late {
			late = "?"
		}
		out = append(out, string(v.Do)+" "+string(v.Job)+late)
	}
	return strings.Join(out, ", ")
}

func TestPlan(t *testing.T) {
	stuck, unsaved := func(c Case) Case { c.Stays = "no room"; return c }, func(c Case) Case { c.Unsaved = "no vault"; return c }
	for name, c := range map[string]struct {
		left  float64
		cases []Case
		want  string
	}{
		"there is time for all":                             {120, []Case{moving("j1", 1, 600, 20, 20), moving("j2", 8, 600, 20, 20)}, "move j2, move j1"},
		"one is saved quicker than sent":                    {60, []Case{moving("j1", 1, 6000, 100, 20)}, "save j1"},
		"no room":                                           {60, []Case{stuck(moving("j1", 1, 6000, 0, 20))}, "save j1"},
		"more is lost of the long one":                      {43, []Case{moving("j1", 1, 60, 30, 100), moving("j2", 1, 6000, 30, 100)}, "move j2, move j1?"},
		"a checkpoint is better than a try that comes late": {63, []Case{moving("j1", 4, 6000, 40, 20), moving("j2", 4, 6000, 40, 20)}, "move j1, save j2"},
		"the small ones do not crowd out the large one":     {63, []Case{unsaved(moving("j1", 1, 30, 1, 0)), unsaved(moving("j2", 16, 90, 60, 0))}, "move j2, move j1?"},
		"nothing can be done":                               {60, []Case{unsaved(stuck(moving("j1", 1, 60, 0, 0)))}, "lose j1"},
		"too late for anything":                             {5, []Case{moving("j1", 1, 600, 20, 20), stuck(moving("j2", 1, 600, 20, 20))}, "move j1?, save j2?"},
		"none":                                              {60, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := words(Plan(t0, t0.Add(sec(c.left)), false, c.cases)); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// A checkpoint begins so that it is kept in time, and at once where the time is a guess.
func TestBegin(t *testing.T) {
	all := []Case{{Job: "j1", Stays: "no room", Save: sec(20), CPUs: 1, Risk: time.Hour}, {Job: "j2", Stays: "no room", Save: sec(30), CPUs: 1, Risk: time.Hour}}
	for _, v := range Plan(t0, t0.Add(time.Hour), false, all) {
		if want := t0.Add(time.Hour - Margin - sec(50)); !v.Start.Equal(want) || !strings.Contains(v.Sentence(t0), "begins in 59m7s") {
			t.Errorf("%s begins at %s, not %s: %s", v.Job, v.Start, want, v.Sentence(t0))
		}
	}
	for _, v := range Plan(t0, t0.Add(time.Hour), true, all) {
		if !v.Start.Equal(t0) || !strings.Contains(v.Sentence(t0), "made now") {
			t.Errorf("%s begins at %s", v.Job, v.Start)
		}
	}
	all[0].Saved = true
	if v := Plan(t0, t0.Add(time.Hour), false, all[:1])[0]; v.Do != Save || !strings.Contains(v.Sentence(t0), "is kept") {
		t.Errorf("%+v", v)
	}
}

// What is chosen fits into the time, says something about each case once, and saves at least half of the best.
func TestPlansAreGood(t *testing.T) {
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 1))
		var cases []Case
		for i := range r.IntN(5) {
			c := moving(fmt.Sprintf("j%d", i), 1+r.IntN(16), 3600*r.Float64(), 60*r.Float64(), 60*r.Float64())
			if r.IntN(4) == 0 {
				c.Stays = "no room"
			}
			if r.IntN(3) == 0 {
				c.Unsaved = "no vault"
			}
			cases = append(cases, c)
		}
		left := sec(200 * r.Float64())
		plan := Plan(t0, t0.Add(left+Margin), false, cases)
		var seen []fleet.JobID
		gain, takes := 0.0, time.Duration(0)
		for _, v := range plan {
			seen = append(seen, v.Job)
			if v.Late || v.Do == Lose {
				continue
			}
			for _, o := range options([]Case{v.Case}) {
				if o.do == v.Do {
					gain, takes = gain+o.gain, takes+o.takes
				}
			}
		}
		slices.Sort(seen)
		if len(slices.Compact(seen)) != len(cases) || len(plan) != len(cases) || takes > left {
			t.Fatalf("seed %d: %s takes %s of %s", seed, words(plan), takes, left)
		}
		if most := best(cases, left); gain < most/2-1e-6 {
			t.Errorf("seed %d: %s saves %.0f of %.0f", seed, words(plan), gain, most)
		}
	}
}

// best tries everything.
func best(cases []Case, left time.Duration) (most float64) {
	if len(cases) == 0 {
		return 0
	}
	most = best(cases[1:], left)
	for _, o := range options(cases[:1]) {
		if o.takes <= left {
			most = max(most, o.gain+best(cases[1:], left-o.takes))
		}
	}
	return most
}
