package sim

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/decide/owners"
)

// Compare: owners are the same under all policies, leaving loses no work and requeueing
// does, and table and page show it.
func TestCompare(t *testing.T) {
	m, err := Named("nd07cpu")
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Hosts: 60, Owners: m, Work: Work{Jobs: 2, Ranks: 8, Time: time.Hour}, For: 24 * time.Hour, Strict: true}
	seeds := []uint64{7, 8, 9}
	if testing.Short() {
		seeds, c.For = seeds[:2], 16*time.Hour
	}
	rows, err := Compare(c, owners.All(), seeds, func(Result) {})
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]Row{}
	for _, r := range rows {
		by[r.Policy] = r
	}
	if a, b := by["evacuate"].Throughput.Mean, by["requeue"].Throughput.Mean; a <= b || a > 16 {
		t.Errorf("evacuate does %g, requeue %g of 16", a, b)
	}
	if w := by["requeue"].WastedHours.Mean; w <= 0 || by["evacuate"].WastedHours.Mean != 0 {
		t.Errorf("requeue loses %g", w)
	}
	if a, b := by["stay"].Disturbed.Mean, by["evacuate"].Disturbed.Mean; a <= b {
		t.Errorf("stay disturbs for %g, evacuate for %g", a, b)
	}
	var table, page strings.Builder
	if err := Table(&table, rows); err != nil {
		t.Fatal(err)
	}
	if err := Page(&page, c, rows); err != nil {
		t.Fatal(err)
	}
	for _, p := range owners.Names() {
		if !strings.Contains(table.String(), p) || !strings.Contains(page.String(), "<td>"+p+"</td>") {
			t.Errorf("%s is left out", p)
		}
	}
	if lines := Against(rows); len(lines) != 4 || !strings.HasPrefix(lines[0], "predictive against stay: throughput ") {
		t.Errorf("%q", lines)
	}
}

// Draws match the fit, and by day owners come three times as often.
func TestModels(t *testing.T) {
	for name := range models {
		m, _ := Named(name)
		visits := m.Of(0, rand.New(rand.NewPCG(3, 0)))
		var up, down []time.Duration
		last, _, _ := visits.Next()
		for range 4000 {
			gone, _, _ := visits.Next()
			back, load, more := visits.Next()
			if !more { // a machine that is up for months has few
				break
			}
			if gone <= last || back <= gone || load < 0.2 || load > 1 {
				t.Fatalf("%s: from %s to %s, and again at %s with %g", name, last, gone, back, load)
			}
			down, up = append(down, gone-last), append(up, back-gone)
			last = back
		}
		for what, c := range map[string]struct {
			of   Draw
			have []time.Duration
		}{"up": {m.Up, up}, "down": {m.Down, down}} {
			if slices.Sort(c.have); len(c.have) < 1000 {
				continue
			}
			want := 0.0
			switch d := c.of.(type) {
			case Weibull:
				want = owners.Fit(d).At(0.5).Hours()
			case LogNormal:
				want = math.Exp(d.Mu)
			}
			if got := c.have[len(c.have)/2].Hours(); got < 0.85*want || got > 1.15*want {
				t.Errorf("%s %s: half last longer than %g h, and should than %g", name, what, got, want)
			}
		}
	}
	at := 40 * time.Hour // Tuesday afternoon
	day, night := daily(at, time.Hour)-at, daily(at-12*time.Hour, time.Hour)-(at-12*time.Hour)
	if r := night.Hours() / day.Hours(); r < 2.9 || r > 3.1 {
		t.Errorf("an owner comes %g times as often by day", r)
	}
	if week := daily(0, 168*time.Hour); week < 167*time.Hour || week > 169*time.Hour {
		t.Errorf("a week lasts %s", week)
	}
	if _, err := Named("nd08"); err == nil {
		t.Error("there is a model nd08")
	}
}
