// Package stall finds out what the ranks of a job saw of a move, and why, from
// what their guests say and when their moves suspended guests.
//
// A virtual machine's clock stands still with it, so the ranks of one that is moved
// do not see that; those of a container see most of it, and those of the others wait
// for them and see it all. Guests' clocks are a little apart from each other and from
// the hosts'.
//
// It must not know how traces are made, nor ask anybody. Its tests are tables
// of gaps and moves.
package stall

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"pagurus/fleet"
)

const (
	// around is how far from the pause a gap may be and still be the move's:
	// what is lost at the switch is sent again within it.
	around = time.Second
	// mostPostCopy is how long after the switch a gap may be the move's by post-copy:
	// what a guest uses most it has waited for by then.
	mostPostCopy = 10 * time.Second
	// apart is how far a guest's clock may be from its host's, which sets it;
	// what the guest agent tolerates, with some room.
	apart = 100 * time.Millisecond
	// restless is how long after a move its traces are still seen: connections
	// that had lost segments come back to their speed.
	restless = 2 * time.Second
	// mostCauses bounds what is said of one gap.
	mostCauses = 6
	// together is how much of a gap another rank's has to share to be its cause.
	together = 2 // half of it
)

// Measure gives what a job's ranks saw of one of its migrations, going by
// their traces of around its switch; moves are all migrations of the job.
// false: no rank saw anything, or nobody knows when the switch was.
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

// Window is the time around a migration's switch in which gaps are its own.
func Window(m fleet.Migration) (fleet.TraceQuery, bool) {
	at := suspendedAt(m)
	if at.IsZero() {
		return fleet.TraceQuery{}, false
	}
	return fleet.TraceQuery{From: at.Add(-around), To: at.Add(m.BlackoutTime() + postCopyTime(m) + around)}, true
}

// postCopyTime is how long the guest ran without all of its memory, by post-copy, and
// had to wait for what it touched.
func postCopyTime(m fleet.Migration) time.Duration {
	for i, e := range m.Entered {
		if e.Phase.Traits().PostCopies() && i+1 < len(m.Entered) {
			return min(m.Entered[i+1].At.Sub(e.At), mostPostCopy)
		}
	}
	return 0
}

// suspendedAt is when the guest was paused: by its host, else by the controller.
func suspendedAt(m fleet.Migration) time.Time {
	if !m.Cost.SuspendedAt.IsZero() {
		return m.Cost.SuspendedAt
	}
	for _, e := range m.Entered {
		if e.Phase.Traits().Committed { // the first of these phases is the switch
			return e.At
		}
	}
	return time.Time{}
}

// Explain gives the traces with the causes of their gaps completed: that a
// guest was suspended for a move, and for a rank that waited inside of a call,
// what other ranks went through meanwhile. What is given is left as it is.
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
	own := slices.Clone(out) // as they are before any rank is blamed for what it only waited for itself
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

// addBlackout adds the time the guest was suspended to the longest of its gaps that
// can have been interrupted by it.
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

// unseen is how much of the time that the guest stood still its own clock did not
// count, of which a gap has what it did. A virtual machine's stops with it. A
// container's goes on but for the time from when CRIU wrote it down until it set it
// anew, which nobody knows: a sixth of the whole. Its gap was no shorter than that.
func unseen(m fleet.Migration, still, seen time.Duration) time.Duration {
	if m.Predicted != nil && !m.Predicted.Kind.Traits().OwnClock {
		return max(0, still-seen)
	}
	return still
}

// on reports whether a gap can have gone on at some moment of a time.
func on(g fleet.Gap, at time.Time, length time.Duration) bool {
	return g.At.Before(at.Add(length+apart)) && g.End().After(at.Add(-apart))
}

// blame adds to a gap's causes those of other ranks' gaps of the same time.
// Of each kind the worst counts.
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

// shared reports whether two gaps are of the same time, as far as the clocks
// of two guests can tell.
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

// worst takes a cause in, unless there is one of its kind that is worse, or
// the gap's own rank went through the same.
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

// weights orders causes: the first explain the most.
var weights = []fleet.Reason{
	fleet.GuestSuspended, fleet.RankStopped, fleet.TCPTimeout, fleet.TCPProbe, fleet.VCPUStolen, fleet.CPUShared, fleet.TCPResent, fleet.TCPDelayed, fleet.Computing,
}

func weight(r fleet.Reason) int {
	if i := slices.Index(weights, r); i >= 0 {
		return i
	}
	return len(weights)
}

// undisturbed is the median of the longest gap of any rank in times as long as
// a window in which nothing of the job moved.
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

// medianOf gives the median of the maxima of as many seconds in a row. Times
// come from guests and may be anything, so only what is there is walked over.
func medianOf(longest map[int64]time.Duration, row int64) time.Duration {
	seconds := slices.Sorted(maps.Keys(longest))
	var all []time.Duration
	for i := 0; row > 0 && int64(i)+row <= int64(len(seconds)); {
		if seconds[int64(i)+row-1]-seconds[i] != row-1 { // one between them is missing
			i++
			continue
		}
		most := time.Duration(0)
		for range row {
			most = max(most, longest[seconds[i]])
			i++
		}
		if most > 0 { // else no rank made calls then
			all = append(all, most)
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}
