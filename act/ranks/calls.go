package ranks

import (
	"time"

	"pagurus/fleet"
)

// calledLast returns the newest calls by the guest's wall clock. Their times are by a
// clock that stops with a virtual machine, so they are computed back from now.
func (r *record) calledLast(now moment) []fleet.Call {
	var out []fleet.Call
	for _, c := range r.newest {
		at := now.real.Add(-time.Duration(now.mono - c.start))
		out = append(out, fleet.Call{At: at.UTC().Round(0), Took: time.Duration(c.took), Class: class(c.class)})
	}
	return out
}

// spans are the ns that a rank was inside of calls, by class as in fleet.CallClasses, in
// equal intervals.
type spans [spansMax][4]uint64

// widen doubles the length of each span.
func (s *spans) widen() {
	for i := range s {
		for c := range s[i] {
			sum := uint64(0)
			if i < spansMax/2 {
				sum = s[2*i][c] + s[2*i+1][c]
			}
			s[i][c] = sum
		}
	}
}

// spread distributes a time inside of calls over the spans that it overlaps.
func (s *spans) spread(from, to, span int64, c uint32) {
	for from < to {
		next := min(to, (from/span+1)*span)
		s[from/span][c] += uint64(next - from)
		from = next
	}
}

// shares is the length of a span, and the percentage of each spent in calls, by class. It
// includes the present call.
func (r *record) shares(last int64) (time.Duration, map[fleet.CallClass][]int) {
	elapsed := last - r.began
	if r.span == 0 || elapsed <= 0 || elapsed >= spansMax<<longestShift {
		return 0, nil
	}
	s, span := r.spans, r.span
	for elapsed/span >= spansMax { // it has been in one call for long
		s.widen()
		span *= 2
	}
	if c := r.inside - 1; c < uint32(len(r.calls)) && !r.ended {
		s.spread(max(r.last-r.began, 0), elapsed, span, c)
	}
	out := map[fleet.CallClass][]int{}
	for i := range elapsed/span + 1 {
		length := uint64(min(span, elapsed-i*span))
		for c, class := range fleet.CallClasses {
			share := 0
			if length > 0 {
				share = int(min(s[i][c], length) * 100 / length)
			}
			out[class] = append(out[class], share)
		}
	}
	return time.Duration(span), out
}
