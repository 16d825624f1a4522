package timeline

import (
	"fmt"
	"strings"
	"time"

	"pagurus/fleet"
)

// Of a rank's line, what it did lies below what it was silent for.
const (
	bandTop  = 11.0
	bandHigh = 14.0
)

// bands are what part of each span of its time a rank spent in calls of each class,
// one upon the other.
func bands(tr fleet.Trace, at func(time.Time) float64) (out []band) {
	below := map[int]int{} // percent that is drawn already, by span
	over := tr.At
	if tr.Elapsed > 0 && tr.Begun.Add(tr.Elapsed).Before(over) {
		over = tr.Begun.Add(tr.Elapsed)
	}
	for _, c := range classes {
		var path strings.Builder
		for i, share := range tr.Spans[c.CallClass] {
			share = max(0, min(share, 100-below[i]))
			if share == 0 {
				continue
			}
			begins := tr.Begun.Add(time.Duration(i) * tr.SpanLength)
			ends := begins.Add(tr.SpanLength)
			if ends.After(over) {
				ends = over
			}
			below[i] += share
			left, right := at(begins), at(ends)
			high := bandHigh * float64(share) / 100
			top := bandTop + bandHigh*(1-float64(below[i])/100)
			fmt.Fprintf(&path, "M%.1f %.2fH%.1fv%.2fH%.1fz", left, top, right, high, left)
		}
		if path.Len() > 0 {
			out = append(out, band{path.String(), c.colour})
		}
	}
	return out
}

// newest is the picture of the newest calls, each by itself.
type newest struct {
	Begun, Took string
	Height      float64
	Lines       []callLine
}

type callLine struct {
	Rank  int
	Y     float64
	Calls []box
}

// drawNewest draws the time of which every rank that has made calls has kept them all;
// nil: there is none. Traces are in order.
func drawNewest(traces []fleet.Trace) *newest {
	var from, to time.Time
	for _, tr := range traces {
		if len(tr.Newest) == 0 {
			continue
		}
		if first := tr.Newest[0].At; first.After(from) {
			from = first
		}
		last := tr.Newest[len(tr.Newest)-1]
		if end := last.At.Add(last.Took); end.After(to) {
			to = end
		}
	}
	all := to.Sub(from)
	if from.IsZero() || all <= 0 {
		return nil
	}
	n := &newest{
		Begun: from.UTC().Format("15:04:05.000000"), Took: all.Round(time.Microsecond).String(),
		Height: rowHigh * float64(len(traces)),
	}
	for i, tr := range traces {
		l := callLine{Rank: tr.Rank, Y: rowHigh * float64(i)}
		for _, c := range tr.Newest {
			begins, ends := max(0, c.At.Sub(from)), c.At.Add(c.Took).Sub(from)
			if ends <= 0 {
				continue
			}
			l.Calls = append(l.Calls, box{
				X: wide * float64(begins) / float64(all), Width: max(leastWide/3, wide*float64(ends-begins)/float64(all)),
				Colour: callColour(c.Class), Says: fmt.Sprintf("%s %s, %s after the picture's beginning", c.Took, c.Class, begins),
			})
		}
		n.Lines = append(n.Lines, l)
	}
	return n
}

func callColour(class fleet.CallClass) string {
	for _, c := range classes {
		if c.CallClass == class {
			return c.colour
		}
	}
	return unknown
}

// CallsCSV is a line for each of the ranks' newest calls.
func CallsCSV(traces []fleet.Trace) ([]byte, error) {
	lines := [][]string{{"rank", "guest", "at", "took_s", "class"}}
	for _, tr := range traces {
		for _, c := range tr.Newest {
			lines = append(lines, []string{fmt.Sprint(tr.Rank), string(tr.Guest), c.At.UTC().Format(time.RFC3339Nano), fmt.Sprint(c.Took.Seconds()), string(c.Class)})
		}
	}
	return written(lines)
}

// SpansCSV is a line for each rank and each of the equally long times of which it is
// kept what the rank did.
func SpansCSV(traces []fleet.Trace) ([]byte, error) {
	head := []string{"rank", "guest", "after_s", "for_s"}
	for _, class := range fleet.CallClasses {
		head = append(head, string(class)+"_percent")
	}
	lines := [][]string{head}
	for _, tr := range traces {
		for i := range longest(tr.Spans) {
			line := []string{fmt.Sprint(tr.Rank), string(tr.Guest), fmt.Sprint((time.Duration(i) * tr.SpanLength).Seconds()), fmt.Sprint(tr.SpanLength.Seconds())}
			for _, class := range fleet.CallClasses {
				share := 0
				if all := tr.Spans[class]; i < len(all) {
					share = all[i]
				}
				line = append(line, fmt.Sprint(share))
			}
			lines = append(lines, line)
		}
	}
	return written(lines)
}

func longest(spans map[fleet.CallClass][]int) (n int) {
	for _, s := range spans {
		n = max(n, len(s))
	}
	return n
}
