// Package report draws a record as one page of HTML that needs no other files: its plots are SVG
// in the page.
//
// It must not know how anything was measured. Its tests draw records and check the page's form
// as a browser would.
package report

import (
	"bytes"
	_ "embed" // of the template
	"fmt"
	"html/template"
	"math"
	"strings"

	"pagurus/bench"
	"pagurus/bench/stats"
)

//go:embed page.html
var source string

var form = template.Must(template.New("page").Funcs(template.FuncMap{"word": word}).Parse(source))

// word quotes a word of a command line for a shell.
func word(s string) string {
	if s != "" && !strings.ContainsAny(s, " \t\n'\"\\$`*?[](){}<>|&;#~!") {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// sheet is the template's data.
type sheet struct {
	Record  *bench.Record
	What    bench.Summary
	Plots   []plotted
	Rows    []line
	Tables  []table
	Harness float64 // percent
}

type plotted struct {
	Title, Says string
	SVG         template.HTML // drawn by this package
}

type line struct {
	bench.Row
	Median, Mean, Interval, Trimmed, Ratio, Chance string
}

// Draw draws the page, with the noise that was measured beside the record (nil: none).
func Draw(r *bench.Record, what bench.Summary, found *bench.Noise) ([]byte, error) {
	s := sheet{Record: r, What: what, Harness: 100 * r.HarnessShare()}
	for _, row := range what.Rows {
		l := lineOf(row)
		if base := what.Aside(row); base != "" {
			l.Ratio += " to " + base
		}
		s.Rows = append(s.Rows, l)
	}
	var err error
	if s.Plots, s.Tables, err = heard(found); err != nil {
		return nil, fmt.Errorf("draw the report: %w", err)
	}
	s.Tables = append(promised(r), s.Tables...)
	for _, p := range []func(*bench.Record, bench.Summary) ([]plotted, error){overheads, parts, curves, copyRounds, runs} {
		plots, err := p(r, what)
		if err != nil {
			return nil, fmt.Errorf("draw the report: %w", err)
		}
		s.Plots = append(s.Plots, plots...)
	}
	var b bytes.Buffer
	if err := form.Execute(&b, s); err != nil {
		return nil, fmt.Errorf("draw the report: %w", err)
	}
	return b.Bytes(), nil
}

func lineOf(row bench.Row) line {
	value := func(v *stats.Interval) string {
		if v == nil {
			return "–"
		}
		return fmt.Sprintf("%.5g", v.Value)
	}
	l := line{Row: row, Median: value(row.Median), Mean: value(row.Mean), Trimmed: value(row.Trimmed), Interval: "–", Ratio: "–", Chance: "–"}
	if row.Mean != nil {
		l.Interval = fmt.Sprintf("%.5g to %.5g", row.Mean.Low, row.Mean.High)
	}
	if row.Ratio != nil {
		l.Ratio = fmt.Sprintf("%.4f (%.4f to %.4f)", row.Ratio.Value, row.Ratio.Low, row.Ratio.High)
	}
	if row.Chance != nil {
		l.Chance = fmt.Sprintf("%.2g", *row.Chance)
	}
	return l
}

// loss returns a ratio for which more is worse, whatever the figure.
func loss(row bench.Row) stats.Interval {
	v := *row.Ratio
	if row.Figure.Sense == stats.Faster {
		v.Value, v.Low, v.High = 1/v.Value, 1/v.High, 1/v.Low
	}
	return v
}

// drawable reports whether a number can be drawn.
func drawable(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// plain returns a plot without its preamble, to be part of a page.
func plain(svg string) template.HTML {
	if at := strings.Index(svg, "<svg"); at > 0 {
		svg = svg[at:]
	}
	return template.HTML(svg) // drawn here, with escaped texts
}
