// Package timeline draws what a job's ranks have done with MPI: when they were
// silent and why, what they spent their time with, and who has sent what to whom.
// It is one page of HTML that needs nothing else.
//
// It must not know where traces come from. Its tests draw traces and read the
// page.
package timeline

import (
	"bytes"
	"cmp"
	_ "embed" // of the template
	"encoding/csv"
	"fmt"
	"html/template"
	"slices"
	"time"

	"pagurus/fleet"
)

//go:embed timeline.html
var source string

var form = template.Must(template.New("timeline").Parse(source))

// Words say for people why a gap came to be, and a cause in short.
type Words struct {
	Why func([]fleet.Cause) string
}

// The picture's measures, in its own units.
const (
	wide      = 1000.0
	rowHigh   = 28.0
	leastWide = 1.5 // of what is too short to be seen
)

// classes are the colours of calls; what is left of a rank's time it computed.
var classes = []struct {
	fleet.CallClass
	colour string
}{{fleet.SendRecv, "#27ae60"}, {fleet.Collective, "#1f618d"}, {fleet.WaitCall, "#16a085"}, {fleet.OtherCall, "#7f8c8d"}}

// colours of causes; the most telling cause of a gap gives it its own.
var colours = map[fleet.Reason]string{
	fleet.GuestSuspended: "#c0392b", fleet.TCPTimeout: "#e67e22", fleet.TCPProbe: "#f1c40f", fleet.TCPResent: "#f5d76e", fleet.TCPDelayed: "#d4ac0d",
	fleet.VCPUStolen: "#8e44ad", fleet.CPUShared: "#9b59b6", fleet.RankStopped: "#34495e", fleet.Computing: "#2980b9",
}

// unknown is the colour of gaps of which nothing is known.
const unknown = "#95a5a6"

type page struct {
	Title        string
	Width        float64
	Height       float64
	Begun        string
	Took         string
	Lines        []line
	Legend       []patch
	Classes      []patch
	Newest       *newest
	Matrix       [][]field
	Ranks        []int
	Gaps         []gap
	Causes       []cause
	HandedCaveat bool
}

type line struct {
	Rank  int
	Guest fleet.GuestID
	Y     float64
	Span  box // while it ran
	Gaps  []box
	Bands []band
	InMPI float64 // percent
}

// band is all that a rank did of one class, as the path of an SVG.
type band struct{ Path, Colour string }

type box struct {
	X, Width float64
	Colour   string
	Says     string
}

type patch struct{ Colour, Says string }

type field struct {
	Says   string
	Shade  float64 // 0 to 1
	Colour template.CSS
}

type gap struct {
	Rank           int
	At, Took, Call string
	Why            string
	took           time.Duration
}

type cause struct {
	What  fleet.Reason
	Gaps  int
	Total string
	total time.Duration
}

// Draw draws the page of a job.
func Draw(title string, traces []fleet.Trace, words Words) ([]byte, error) {
	p := page{Title: title, Width: wide, Height: rowHigh * float64(len(traces)+1)}
	traces = slices.SortedFunc(slices.Values(traces), func(a, b fleet.Trace) int { return cmp.Compare(a.Rank, b.Rank) })
	from, to := span(traces)
	p.Begun, p.Took = from.UTC().Format("2006-01-02 15:04:05.000 MST"), to.Sub(from).Round(time.Millisecond).String()
	at := func(t time.Time) float64 {
		if all := to.Sub(from); all > 0 {
			return wide * float64(t.Sub(from)) / float64(all)
		}
		return 0
	}
	for i, tr := range traces {
		l := line{Rank: tr.Rank, Guest: tr.Guest, Y: rowHigh * float64(i), InMPI: inMPI(tr)}
		l.Span = box{X: at(tr.Begun), Width: max(leastWide, at(tr.At)-at(tr.Begun))}
		l.Bands = bands(tr, at)
		for _, g := range tr.Gaps {
			l.Gaps = append(l.Gaps, box{X: at(g.At), Width: max(leastWide, at(g.End())-at(g.At)), Colour: colour(g), Says: said(g, words)})
			p.Gaps = append(p.Gaps, gap{g.Rank, g.At.Sub(from).Round(time.Millisecond).String(), g.Took.Round(10 * time.Microsecond).String(), called(g), words.Why(g.Why), g.Took})
		}
		p.Lines = append(p.Lines, l)
		p.Ranks = append(p.Ranks, tr.Rank)
		p.HandedCaveat = p.HandedCaveat || tr.Handed.Bytes > 0
	}
	slices.SortStableFunc(p.Gaps, func(a, b gap) int { return cmp.Compare(b.took, a.took) })
	p.Causes = causes(traces)
	for _, c := range p.Causes {
		p.Legend = append(p.Legend, patch{colourOf(c.What), string(c.What)})
	}
	for _, c := range classes {
		p.Classes = append(p.Classes, patch{c.colour, string(c.CallClass)})
	}
	p.Newest = drawNewest(traces)
	p.Matrix = matrix(traces)
	var b bytes.Buffer
	if err := form.Execute(&b, p); err != nil {
		return nil, fmt.Errorf("draw the timeline: %w", err)
	}
	return b.Bytes(), nil
}

// span is from the first rank's beginning to the last's last word.
func span(traces []fleet.Trace) (from, to time.Time) {
	for i, tr := range traces {
		if i == 0 || tr.Begun.Before(from) {
			from = tr.Begun
		}
		if tr.At.After(to) {
			to = tr.At
		}
	}
	return from, to
}

func inMPI(tr fleet.Trace) float64 {
	inside := time.Duration(0)
	for _, c := range tr.Calls {
		inside += c.Took
	}
	if all := inside + tr.Outside; all > 0 {
		return 100 * float64(inside) / float64(all)
	}
	return 0
}

func colourOf(r fleet.Reason) string {
	if c, ok := colours[r]; ok {
		return c
	}
	return unknown
}

func colour(g fleet.Gap) string {
	if len(g.Why) == 0 {
		return unknown
	}
	return colourOf(g.Why[0].What)
}

func called(g fleet.Gap) string {
	if !g.InMPI {
		return "between calls"
	}
	return "in MPI, " + string(g.Call)
}

func said(g fleet.Gap, words Words) string {
	text := g.Took.Round(10*time.Microsecond).String() + " " + called(g)
	if why := words.Why(g.Why); why != "" {
		text += ": " + why
	}
	return text
}

// causes adds up the gaps by their most telling cause.
func causes(traces []fleet.Trace) (all []cause) {
	by := map[fleet.Reason]*cause{}
	for _, tr := range traces {
		for _, g := range tr.Gaps {
			what := fleet.Reason("unknown")
			if len(g.Why) > 0 {
				what = g.Why[0].What
			}
			if by[what] == nil {
				by[what] = &cause{What: what}
			}
			by[what].Gaps++
			by[what].total += g.Took
		}
	}
	for _, c := range by {
		c.Total = c.total.Round(time.Millisecond).String()
		all = append(all, *c)
	}
	slices.SortFunc(all, func(a, b cause) int { return cmp.Or(cmp.Compare(b.total, a.total), cmp.Compare(a.What, b.What)) })
	return all
}

// mostRanks is how many ranks have a matrix that a person can read.
const mostRanks = 64

// matrix says what each rank sent to each; none of more than mostRanks.
func matrix(traces []fleet.Trace) (rows [][]field) {
	if len(traces) > mostRanks {
		return nil
	}
	most := uint64(1)
	for _, tr := range traces {
		for _, s := range tr.Sent {
			most = max(most, s.Bytes)
		}
	}
	for _, tr := range traces {
		row := make([]field, len(traces))
		for _, s := range tr.Sent {
			for j, other := range traces {
				if other.Rank == s.Rank {
					shade := float64(s.Bytes) / float64(most)
					row[j] = field{Says: fmt.Sprintf("%d messages, %d bytes", s.Messages, s.Bytes), Shade: shade,
						Colour: template.CSS(fmt.Sprintf("background:rgba(41,128,185,%.3f)", shade))}
				}
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// GapsCSV is a line for every gap.
func GapsCSV(traces []fleet.Trace, words Words) ([]byte, error) {
	lines := [][]string{{"rank", "guest", "at", "took_s", "where", "causes"}}
	for _, tr := range traces {
		for _, g := range tr.Gaps {
			lines = append(lines, []string{fmt.Sprint(g.Rank), string(tr.Guest), g.At.UTC().Format(time.RFC3339Nano), fmt.Sprint(g.Took.Seconds()), called(g), words.Why(g.Why)})
		}
	}
	return written(lines)
}

// SentCSV is a line for every pair of ranks of which one has sent to the other.
func SentCSV(traces []fleet.Trace) ([]byte, error) {
	lines := [][]string{{"from", "to", "messages", "bytes"}}
	for _, tr := range traces {
		for _, s := range tr.Sent {
			lines = append(lines, []string{fmt.Sprint(tr.Rank), fmt.Sprint(s.Rank), fmt.Sprint(s.Messages), fmt.Sprint(s.Bytes)})
		}
	}
	return written(lines)
}

func written(lines [][]string) ([]byte, error) {
	var b bytes.Buffer
	err := csv.NewWriter(&b).WriteAll(lines)
	return b.Bytes(), err
}
