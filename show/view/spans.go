package view

import (
	"fmt"
	"strings"
	"time"

	"pagurus/fleet"
)

const (
	marksMost      = 64 // of one rank
	spansRanksMost = 32
	longestSpan    = 1 << 55 // ns, a year; bounds what a guest reports
)

// marks draw a share, from none to all.
var marks = []rune(" ▁▂▃▄▅▆▇█")

// SpanTable draws how much of its time each rank has spent in MPI, from beginning to end.
func SpanTable(traces []fleet.Trace) Table {
	t := Table{Columns: []string{"RANK", "A MARK IS", "IN MPI, FROM BEGINNING TO END"}, Empty: "no MPI times are known"}
	for _, tr := range traces {
		shares := inside(tr.Spans)
		if len(shares) == 0 || tr.SpanLength <= 0 {
			continue
		}
		if len(t.Rows) == spansRanksMost {
			t.Notes = append(t.Notes, fmt.Sprintf("these are the first %d ranks; --json and `pagurus trace --report` have all", spansRanksMost))
			break
		}
		each := (len(shares) + marksMost - 1) / marksMost
		t.Rows = append(t.Rows, []string{fmt.Sprint(tr.Rank), Took(min(tr.SpanLength, longestSpan) * time.Duration(each)), "|" + strip(shares, each) + "|"})
	}
	return t
}

// inside adds the percentages of a rank's spans over all classes of calls.
func inside(spans map[fleet.CallClass][]int) (all []int) {
	for _, class := range fleet.CallClasses {
		for i, share := range spans[class] {
			if i == len(all) {
				all = append(all, 0)
			}
			all[i] = min(all[i]+min(max(share, 0), 100), 100)
		}
	}
	return all
}

// strip draws a mark for each group of spans.
func strip(shares []int, each int) string {
	var line strings.Builder
	for i := 0; i < len(shares); i += each {
		group := shares[i:min(i+each, len(shares))]
		sum := 0
		for _, share := range group {
			sum += share
		}
		line.WriteRune(marks[(sum*(len(marks)-1)+50*len(group))/(100*len(group))])
	}
	return line.String()
}
