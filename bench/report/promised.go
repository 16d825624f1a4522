package report

import (
	"fmt"
	"maps"
	"slices"

	"pagurus/bench"
)

// promised lists what was promised, and when it was measured.
func promised(r *bench.Record) (tables []table) {
	if len(r.Promised) == 0 {
		return nil
	}
	t := table{Title: "What was promised", Head: []string{"figure", "is", "interval", "promised"}}
	for _, name := range slices.Sorted(maps.Keys(r.Promised)) {
		p, limit := r.Promised[name], "–"
		switch {
		case p.AtMost != nil:
			limit = fmt.Sprintf("at most %.3g", *p.AtMost)
		case p.AtLeast != nil:
			limit = fmt.Sprintf("at least %.3g", *p.AtLeast)
		}
		t.Rows = append(t.Rows, []string{name, fmt.Sprintf("%.3g", p.Value), fmt.Sprintf("%.3g to %.3g (%.0f %%, n=%d)", p.Low, p.High, 100*p.Confidence, p.Samples), limit})
	}
	s := table{Title: "Sittings", Head: []string{"begun", "commit", "kernel"}}
	for _, at := range r.Sittings {
		s.Rows = append(s.Rows, []string{at.Begun.Format("2006-01-02 15:04 MST"), at.Commit, at.Kernel})
	}
	return []table{t, s}
}
