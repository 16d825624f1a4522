// Package stall finds what a job's ranks saw of a move, and why, from their traces and
// the times of suspensions.
//
// A virtual machine's clock stops with it, so ranks in a moved one do not see the
// suspension. Ranks in a container see most of it. Other ranks wait for them and see all
// of it. Guests' clocks differ slightly from each other and from the hosts'.
//
// It must not know how traces are made, nor query them. Its tests are tables of gaps and
// moves.
package stall

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"pagurus/fleet"
)

const (
	// around is how far from the suspension a gap of the move may be: segments lost at
	// the switch are sent again within it.
	around = time.Second
	// mostPostCopy is the same after a post-copy switch: by then a guest has fetched the
	// memory that it uses most.
	mostPostCopy = 10 * time.Second
	// apart is the maximum difference between the clocks of a guest and its host: what
	// the guest agent tolerates, with a margin.
	apart = 100 * time.Millisecond
	// restless is how long a move still affects traces: connections that lost segments
	// recover their speed.
	restless = 2 * time.Second
	// mostCauses limits the causes of one gap.
	mostCauses = 6
	// together is the divisor for how much of a gap another rank's gap must overlap to be
	// its cause.
	together = 2 // half of it
)

// Measure returns what a job's ranks saw of a migration, from their traces around its
// switch; moves are all migrations of the job. false: no rank saw anything, or the time
// of the switch is unknown.
func Measure(m fleet.Migration, moves []fleet.Migration, traces []fleet.Trace) (fleet.Stall, bool) {
	q, ok := Window(m)
	if !ok {
		return fleet.Stall{}, false
	}
	traces = Explain(traces, moves)
	out := fleet.Stall{Ranks: len(traces)}
	for _, t := range traces {
		for _, g := range t.Gaps {
			if on(g, suspendedAt(m), m.BlackoutTime()) {
				out.AtSwitch = max(out.AtSwitch, g.Took)
			}
			if g.Took > out.Took && !g.At.After(q.To) && !g.End().Before(q.From) {
				out.Gap = g
			}
		}
	}
	if out.Took == 0 {
		return fleet.Stall{}, false
	}
	out.Undisturbed = undisturbed(traces, moves, q.To.Sub(q.From))
	return out, true
}

// Window is the time around a migration's switch in which gaps belong to it.
func Window(m fleet.Migration) (fleet.TraceQuery, bool) {
	at := suspendedAt(m)
	if at.IsZero() {
		return fleet.TraceQuery{}, false
	}
	return fleet.TraceQuery{From: at.Add(-around), To: at.Add(m.BlackoutTime() + postCopyTime(m) + around)}, true
}

// postCopyTime is how long the guest ran without all of its memory, in post-copy.
func postCopyTime(m fleet.Migration) time.Duration {
	for i, e := range m.Entered {
		if e.Phase.Traits().PostCopies() && i+1 < len(m.Entered) {
			return min(m.Entered[i+1].At.Sub(e.At), mostPostCopy)
		}
	}
	return 0
}

// suspendedAt is when the guest was suspended, by its host's clock or else the
// controller's.
func suspendedAt(m fleet.Migration) time.Time {
	if !m.Cost.SuspendedAt.IsZero() {
		return m.Cost.SuspendedAt
	}
	for _, e := range m.Entered {
		if e.Phase.Traits().Committed { // the first committed phase is the switch
			return e.At
		}
	}
	return time.Time{}
}

// Explain completes the causes of gaps: suspensions by moves, and for ranks that waited
// inside of a call, causes of other ranks' gaps meanwhile. It does not change its
// arguments.
func Explain(traces []fleet.Trace, moves []fleet.Migration) []fleet.Trace {
	out := slices.Clone(traces)
	for i := range out {
		out[i].Gaps = slices.Clone(out[i].Gaps)
		for _, m := range moves {
			if m.Guest == out[i].Guest {
				addBlackout(out[i].Gaps, m)
			}
		}
	}
	own := slices.Clone(out) // before other ranks' causes are added
	for i := range own {
		own[i].Gaps = slices.Clone(out[i].Gaps)
	}
	for i := range out {
		for k, g := range out[i].Gaps {
			if g.InMPI {
				out[i].Gaps[k].Why = blame(g, out[i].Rank, own)
			}
		}
		slices.SortStableFunc(out[i].Gaps, func(a, b fleet.Gap) int { return cmp.Compare(b.Took, a.Took) })
	}
	return out
}

// addBlackout adds the guest's blackout to the longest gap that can include it.
func addBlackout(gaps []fleet.Gap, m fleet.Migration) {
	at, still := m.Cost.SuspendedAt, m.BlackoutTime()
	if at.IsZero() || still <= 0 {
		return
	}
	hit := -1
	for i, g := range gaps {
		if on(g, at, 0) && (hit < 0 || g.Took > gaps[hit].Took) {
			hit = i
		}
	}
	if hit < 0 {
		return
	}
	g := &gaps[hit]
	g.Took += unseen(m, still, g.Took)
	g.Why = append([]fleet.Cause{{What: fleet.GuestSuspended, Took: still}}, g.Why...)
}

// unseen is the part of a suspension that the guest's clock did not count and its gap
// lacks. A virtual machine's clock stops. A container's clock only loses the unknown time
// between its dump and its restore, a sixth of the suspension: its gap had the rest.
func unseen(m fleet.Migration, still, seen time.Duration) time.Duration {
	if m.Predicted != nil && !m.Predicted.Kind.Traits().OwnClock {
		return max(0, still-seen)
	}
	return still
}

// on reports whether a gap can overlap a time interval.
func on(g fleet.Gap, at time.Time, length time.Duration) bool {
	return g.At.Before(at.Add(length+apart)) && g.End().After(at.Add(-apart))
}

// blame returns a gap's causes from other ranks' simultaneous gaps, the worst of each
// kind.
func blame(g fleet.Gap, rank int, all []fleet.Trace) []fleet.Cause {
	out := slices.Clone(g.Why)
	for _, t := range all {
		if t.Rank == rank {
			continue
		}
		for _, other := range t.Gaps {
			if !shared(g, other) {
				continue
			}
			for _, c := range other.Why {
				if c.Rank == nil {
					r := t.Rank
					c.Rank = &r
					out = worst(out, c)
				}
			}
		}
	}
	slices.SortStableFunc(out, func(a, b fleet.Cause) int { return cmp.Compare(weight(a.What), weight(b.What)) })
	return out[:min(len(out), mostCauses)]
}

// shared reports whether two gaps overlap, within the accuracy of two guests' clocks.
func shared(g, other fleet.Gap) bool {
	from, to := g.At, g.End()
	if other.At.After(from) {
		from = other.At
	}
	if other.End().Before(to) {
		to = other.End()
	}
	return to.Sub(from)+min(apart, g.Took/(2*together)) >= g.Took/together
}

// worst adds a cause, unless there is a worse one of its kind, or the gap's own rank has
// the same.
func worst(list []fleet.Cause, c fleet.Cause) []fleet.Cause {
	for i, old := range list {
		if old.What != c.What {
			continue
		}
		if old.Rank != nil && (c.Took > old.Took || c.Count > old.Count) {
			list[i] = c
		}
		return list
	}
	return append(list, c)
}

// weights orders causes, most relevant first.
var weights = []fleet.Reason{
	fleet.GuestSuspended, fleet.RankStopped, fleet.TCPTimeout, fleet.TCPProbe, fleet.VCPUStolen, fleet.CPUShared, fleet.TCPResent, fleet.TCPDelayed, fleet.Computing,
}

func weight(r fleet.Reason) int {
	if i := slices.Index(weights, r); i >= 0 {
		return i
	}
	return len(weights)
}

// undisturbed is the median longest gap of any rank in windows of the same length without
// a move of the job.
func undisturbed(traces []fleet.Trace, moves []fleet.Migration, window time.Duration) time.Duration {
	longest := map[int64]time.Duration{}
	for _, t := range traces {
		for i, took := range t.Seconds {
			s := t.At.Unix() - int64(len(t.Seconds)-1-i)
			longest[s] = max(longest[s], took)
		}
	}
	for _, m := range moves {
		from, to := suspendedAt(m), suspendedAt(m)
		for _, e := range m.Entered {
			if from.IsZero() || e.At.Before(from) {
				from = e.At
			}
			if e.At.After(to) {
				to = e.At
			}
		}
		if from.IsZero() {
			continue
		}
		for s := range longest {
			if s >= from.Add(-around).Unix() && s <= to.Add(restless).Unix() {
				delete(longest, s)
			}
		}
	}
	return medianOf(longest, int64((window+time.Second-1)/time.Second))
}

// medianOf returns the median of the maxima over row successive seconds. Guests may
// report any times, so only existing ones are visited.
func medianOf(longest map[int64]time.Duration, row int64) time.Duration {
	seconds := slices.Sorted(maps.Keys(longest))
	var all []time.Duration
	for i := 0; row > 0 && int64(i)+row <= int64(len(seconds)); {
		if seconds[int64(i)+row-1]-seconds[i] != row-1 { // a second between them is missing
			i++
			continue
		}
		most := time.Duration(0)
		for range row {
			most = max(most, longest[seconds[i]])
			i++
		}
		if most > 0 { // otherwise no rank made calls then
			all = append(all, most)
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}
