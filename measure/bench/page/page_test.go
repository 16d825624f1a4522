package page

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"pagurus/measure/bench"
	"pagurus/measure/stats"
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

// The page needs nothing else and is well-formed: every tag that is opened is
// closed.
func TestThePageStandsByItself(t *testing.T) {
	r := record(12)
	r.Command, r.Spec.Ranks = []string{"pagurus", "bench", "app:./it 'works'"}, 4
	text, err := Draw(r, r.Summarise())
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

func TestWhatWasCutOffIsDrawn(t *testing.T) {
	for runs := range 3 {
		r := record(runs)
		r.Complete = false
		text, err := Draw(r, r.Summarise())
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

// A rate that falls and a time that rises are both drawn as worse.
func TestWorseIsMore(t *testing.T) {
	r := record(12)
	for _, row := range r.Summarise().Rows {
		if row.Ratio != nil && loss(row).Low < 1.05 {
			t.Errorf("%s: %v", row.Figure.Says, loss(row))
		}
	}
}
