package report

import (
	"encoding/xml"
	"errors"
	"html/template"
	"io"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"pagurus/bench"
	"pagurus/bench/noise"
	"pagurus/bench/stats"
)

func record(runs int) *bench.Record {
	r := &bench.Record{
		Complete: true, Guests: map[string]bench.Setting{"native": {Kind: "native"}, "container": {Kind: "container", Guests: 2}},
		Spec: bench.Spec{Name: "over<head>", Targets: []string{"native", "container"}, Runs: runs, Confidence: 0.97, Programs: []bench.Program{
			{Name: "netpipe", Figures: []bench.Figure{{Name: "latency_s", Says: "latency & more", Unit: "s", Sense: stats.Slower}, {Name: "rate", Says: "rate", Unit: "bit/s", Sense: stats.Faster}}},
		}},
	}
	for i := range runs {
		for j, t := range r.Spec.Targets {
			v := 1 + 0.1*float64(j) + 0.01*float64(i*7%5)
			r.Runs = append(r.Runs, bench.Run{Round: i, Program: "netpipe", Target: t, Figures: map[string]float64{"latency_s": v, "rate": 1 / v},
				Curves: map[string][]bench.Point{"latency": {{X: 1, Y: v}, {X: 1024, Y: 2 * v}, {X: 0, Y: math.Inf(1)}}},
				Parts:  map[string][]bench.Part{"latency_s": {{Name: "wire & card", Value: v / 3}, {Name: "rest", Value: v * 2 / 3}, {Name: "odd", Value: math.NaN()}}}})
		}
	}
	return r
}

// The page needs no other files and is well-formed: every opened tag is closed.
func TestThePageStandsByItself(t *testing.T) {
	r := record(12)
	r.Command, r.Spec.Ranks = []string{"pagurus", "bench", "app:./it 'works'"}, 4
	text, err := Draw(r, r.Summarise(), nil)
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for _, alien := range []string{"<script", "<link", "<img", "@import", "url(", "over<head>"} {
		if strings.Contains(page, alien) {
			t.Errorf("the page has %s", alien)
		}
	}
	for _, want := range []string{"container is 9", "4 ranks; 12 runs", "latency &amp; more", "Overhead", "every run", "netpipe: latency", "latency &amp; more: its parts", "wire &amp; card", `pagurus bench &#39;app:./it &#39;\&#39;&#39;works&#39;\&#39;&#39;&#39;`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %s", want)
		}
	}
	if n := strings.Count(page, "<svg"); n != 5 {
		t.Errorf("the page has %d plots", n)
	}
	wellFormed(t, page)
}

// Any record that is kept is drawn, with what was promised.
func TestKeptRecordsAreDrawn(t *testing.T) {
	files, err := filepath.Glob("../../docs/figures/*.json")
	if err != nil || len(files) < 9 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, file := range files {
		if filepath.Base(file) == "chaos.json" {
			continue // which is none of these
		}
		r, err := bench.Load(file)
		if err != nil {
			t.Fatal(err)
		}
		text, err := Draw(r, r.Summarise(), nil)
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		page := string(text)
		wellFormed(t, page)
		for name := range r.Promised {
			if !strings.Contains(page, "<td>"+template.HTMLEscapeString(name)+"</td>") {
				t.Errorf("the page of %s has no %q", file, name)
			}
		}
		for _, s := range r.Sittings {
			if !strings.Contains(page, "<td>"+s.Commit+"</td>") {
				t.Errorf("the page of %s has no commit %s", file, s.Commit)
			}
		}
		if !strings.Contains(page, "<svg") || !strings.Contains(page, "every run") {
			t.Errorf("the page of %s has no plots", file)
		}
	}
}

func wellFormed(t *testing.T, page string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(page))
	d.Strict, d.AutoClose, d.Entity = false, []string{"meta"}, xml.HTMLEntity
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// The legend names the base of each bar, which need not be the first target.
func TestBarsNameTheirBases(t *testing.T) {
	r := record(12)
	r.Guests["vm"], r.Guests["vm-tuned"], r.Guests["container-lossy"] = bench.Setting{Accelerator: "tcg"}, bench.Setting{Accelerator: "tcg"}, bench.Setting{Beside: "container"}
	for _, t := range []string{"vm", "vm-tuned", "container-lossy"} {
		r.Spec.Targets = append(r.Spec.Targets, t)
		for _, run := range r.Runs[:24] {
			if run.Target == "container" {
				run.Target = t
				r.Runs = append(r.Runs, run)
			}
		}
	}
	text, err := Draw(r, r.Summarise(), nil)
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for _, want := range []string{"container / native", "vm-tuned / vm", "container-lossy / container", ") to vm</td>", ") to container</td>", "with KVM the same command"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, wrong := range []string{"vm / ", "worse than native", ") to native"} {
		if strings.Contains(page, wrong) {
			t.Errorf("the page has %q", wrong)
		}
	}
}

// The noise beside the record is in the page, also if it is a single quantum.
func TestNoiseIsDrawn(t *testing.T) {
	long := noise.Core{CPU: 3, Sources: []noise.Source{{Name: "timer <local>", Count: 7}, {Name: "other programs ran", Count: 2, Seconds: 0.0125}}}
	for i := range 100 {
		long.Quanta = append(long.Quanta, 1e-3+float64(i%10/9)*2e-4)
	}
	for _, c := range []struct {
		plots int
		of    bench.Noise
	}{
		{2, bench.Noise{Quantum: time.Millisecond, Cores: []noise.Core{long, {CPU: 4, Quanta: []float64{1e-3}}}, Predicted: map[int]stats.Interval{2: {Value: 1.2, Low: 1.1, High: 1.3, Confidence: 0.97}, 64: {Value: 1.5, Low: 1.4, High: 1.6}}}},
		{2, bench.Noise{Cores: []noise.Core{{CPU: 3, Quanta: []float64{1e-3}}}, Predicted: map[int]stats.Interval{1: {Value: 1, Low: 1, High: 1}}}},
		{0, bench.Noise{}},
	} {
		r := record(0)
		text, err := Draw(r, r.Summarise(), &c.of)
		if err != nil {
			t.Fatal(err)
		}
		page := string(text)
		if n := strings.Count(page, "<svg"); n != c.plots {
			t.Errorf("%d cores have %d plots", len(c.of.Cores), n)
		}
		wellFormed(t, page)
		for _, want := range []string{"cpu3", "cpu4", "timer &lt;local&gt;", "<td>12.500</td>", "<td>1.400 to 1.600 (0 %)</td>", "<td>1.100 to 1.300 (97 %)</td>"} {
			if len(c.of.Cores) == 2 && !strings.Contains(page, want) {
				t.Errorf("the page has no %q", want)
			}
		}
	}
}

// Rounds are matched by their order: their times differ from move to move.
func TestRoundsOfCopiesAreDrawn(t *testing.T) {
	r := record(2)
	for i, points := range [][]bench.Point{{{X: 0, Y: 100}, {X: 2, Y: 10}}, {{X: 0, Y: 50}}, {{X: 0, Y: 200}, {X: 4, Y: 30}, {X: 5, Y: 0}}, {{X: 0.2, Y: 70}}} {
		r.Runs[i].Curves = map[string][]bench.Point{bench.CopyRounds: points}
	}
	got := byOrder(r, "netpipe", "native")
	if len(got) != 2 || got[0].X != 0 || got[0].Y != 150 || got[1].X != 3 || got[1].Y != 20 {
		t.Errorf("they are %v", got)
	}
	text, err := Draw(r, r.Summarise(), nil)
	if err != nil || !strings.Contains(string(text), "netpipe: rounds of the copy") || strings.Contains(string(text), "bytes of a message") {
		t.Errorf("%v", err)
	}
	r.Runs = r.Runs[1:2] // one move of one round
	if _, err := Draw(r, r.Summarise(), nil); err != nil {
		t.Error(err)
	}
}

func TestWhatWasCutOffIsDrawn(t *testing.T) {
	for runs := range 3 {
		r := record(runs)
		r.Complete = false
		text, err := Draw(r, r.Summarise(), nil)
		if err != nil || !strings.Contains(string(text), "cut off") {
			t.Errorf("%d runs: %v", runs, err)
		}
	}
}

// The parts of a figure are their medians over all runs, of each target.
func TestPartsAreMedians(t *testing.T) {
	names, medians := partsOf(record(5), "netpipe", "latency_s")
	if len(names) != 3 || names[0] != "wire & card" || math.Abs(medians["rest"][1]-1.12*2/3) > 1e-9 || medians["odd"][0] != 0 {
		t.Errorf("%q, %v", names, medians)
	}
	few := record(2)
	few.Runs[0].Parts["latency_s"] = few.Runs[0].Parts["latency_s"][:1] // of the first target, which has two
	if _, medians := partsOf(few, "netpipe", "latency_s"); math.Abs(medians["rest"][0]-1.02*2/3/2) > 1e-9 || math.Abs(medians["wire & card"][0]-1.01/3) > 1e-9 {
		t.Errorf("of two runs the medians are %v", medians)
	}
	if names, _ := partsOf(record(5), "netpipe", "rate"); names != nil {
		t.Errorf("a figure without parts has %q", names)
	}
}

// A falling rate and a rising time are both drawn as worse.
func TestWorseIsMore(t *testing.T) {
	r := record(12)
	for _, row := range r.Summarise().Rows {
		if row.Ratio != nil && loss(row).Low < 1.05 {
			t.Errorf("%s: %v", row.Figure.Says, loss(row))
		}
	}
}

// The labels of an axis are at their values.
func TestTicksAreNamedByTheirValues(t *testing.T) {
	named := 0
	for _, tick := range (exact{}).Ticks(1.02, 1.21) {
		if tick.Label == "" {
			continue
		}
		named++
		if v, err := strconv.ParseFloat(tick.Label, 64); err != nil || math.Abs(v-tick.Value) > 1e-5 {
			t.Errorf("%g is called %q", tick.Value, tick.Label)
		}
	}
	if named < 2 {
		t.Errorf("%d ticks have names", named)
	}
}
