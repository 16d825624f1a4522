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
				Curves: map[string][]bench.Point{"latency": {{X: 1, Y: v}, {X: 1024, Y: 2 * v}, {X: 0, Y: math.Inf(1)}}}})
		}
	}
	return r
}

// The page needs nothing else and is well-formed: every tag that is opened is
// closed.
func TestThePageStandsByItself(t *testing.T) {
	r := record(12)
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
	for _, want := range []string{"container is 9", "latency &amp; more", "Overhead", "every run", "netpipe: latency"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %s", want)
		}
	}
	if n := strings.Count(page, "<svg"); n != 4 {
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

// A rate that falls and a time that rises are both drawn as worse.
func TestWorseIsMore(t *testing.T) {
	r := record(12)
	for _, row := range r.Summarise().Rows {
		if row.Ratio != nil && loss(row).Low < 1.05 {
			t.Errorf("%s: %v", row.Figure.Says, loss(row))
		}
	}
}
