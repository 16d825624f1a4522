package cost

import (
	"cmp"
	"math"
	"slices"
	"time"

	"pagurus/fleet"
)

// Subject is the coming move: what past ones may have in common with it.
type Subject struct {
	Kind     fleet.Kind
	Job      fleet.JobID
	Guest    fleet.GuestID // "": any of the job's
	From, To fleet.HostID
	ForOwner bool // the move empties a host for its owner, whose programs get the CPU first
}

// How many past moves are better evidence than a larger number of less similar ones.
const (
	fewOwned = 2 // for owners, or for other reasons: for everything
	fewLinks = 2 // between the same two hosts: for the link
	fewLikes = 5 // of the same job, or between the same two hosts: for the errors
	// whole is the number of outcomes whose own quantiles give 90 % intervals; with fewer
	// the intervals are widened.
	whole = 19
	// Remembered is how many of the latest moves are used for learning.
	Remembered = 200
)

// besideOwner is the share of a copy's bandwidth that an owner's programs leave, until
// moves show it. It was a third where host and owner shared a third of a core, and all
// where there were enough CPUs for both.
const besideOwner = 0.5

// outcome is the cost of a past move that arrived.
type outcome struct {
	m        fleet.Migration
	total    time.Duration
	downtime time.Duration
	elapsed  float64 // seconds from the first byte to the last
	sent     float64 // bytes
	ended    time.Time
	curve    curve // of its profile, if it has one

	place int     // in its History
	risen bool    // rise is known
	rise  float64 // ratio of dirty rates for a copy limited only by its link; 0: unknown
}

// rate is the bandwidth while it sent.
func (o *outcome) rate() float64 {
	if o.capped() {
		return o.sent / o.elapsed
	}
	looking := math.Max(float64(o.m.Cost.TotalBytes), 0) / looked
	return o.sent / math.Max(o.elapsed-looking, o.elapsed/4)
}

// ceiling is the copy's bandwidth limit; 0: none.
func (o *outcome) ceiling() float64 {
	if o.m.Predicted == nil {
		return 0
	}
	return math.Max(0, float64(o.m.Predicted.Limits.BytesPerSecond))
}

// capped reports whether the limit, not the link, determined the copy's bandwidth.
func (o *outcome) capped() bool { return o.ceiling() > 0 && o.sent/o.elapsed >= 0.7*o.ceiling() }

func (o *outcome) share() float64 {
	if o.m.Predicted == nil {
		return 1
	}
	return float64(max(o.m.Predicted.Share, 1))
}

// Total is how long an ended migration took, from its first order.
func Total(m fleet.Migration) time.Duration {
	if len(m.Entered) == 0 {
		return 0
	}
	return max(0, m.Entered[len(m.Entered)-1].At.Sub(m.Entered[0].At))
}

// waited is how long a move waited for marks of its programs, which no prediction has in it.
func waited(m fleet.Migration) (sum time.Duration) {
	if m.Predicted == nil || !m.Predicted.AtMark {
		return 0
	}
	for i, e := range m.Entered {
		if (e.Phase == fleet.Waiting || e.Phase == fleet.Ready) && i+1 < len(m.Entered) {
			sum += max(0, m.Entered[i+1].At.Sub(e.At))
		}
	}
	return sum
}

// outcomeOf returns the cost of a move; nil if it did not arrive, was slowed, or its
// source did not report.
func outcomeOf(m fleet.Migration) *outcome {
	o := &outcome{m: m, total: Total(m) - waited(m), downtime: m.Cost.Downtime, sent: float64(m.Cost.SentBytes)}
	if m.Phase != fleet.Finished || m.Orphan || m.Cost.SlowedPercent > 0 || o.total <= 0 || o.sent <= 0 || m.Cost.Elapsed <= 0 || o.downtime < 0 {
		return nil
	}
	o.elapsed = m.Cost.Elapsed.Seconds()
	o.ended = m.Entered[len(m.Entered)-1].At
	if m.Predicted != nil && m.Predicted.Profile != nil {
		o.curve = newCurve(profiled(m.Predicted))
	}
	return o
}

// latest sorts outcomes, latest first, equals by name so that the result is
// deterministic.
func latest(past []*outcome) []*outcome {
	slices.SortFunc(past, func(a, b *outcome) int { return cmp.Or(b.ended.Compare(a.ended), cmp.Compare(a.m.ID, b.m.ID)) })
	return past[:min(len(past), Remembered)]
}

func linkOf(p fleet.Prediction) Link { return Link{Limits: p.Limits, Share: p.Share}.known() }

func plural(n int) string {
	if n == 1 {
		return "move"
	}
	return "moves"
}

// some returns the similar outcomes if they are enough, otherwise all.
func some(enough int, all []*outcome, alike func(*outcome) bool) []*outcome {
	return atLeast(enough, only(all, alike), all)
}

// only returns the similar outcomes.
func only(all []*outcome, alike func(*outcome) bool) []*outcome {
	var out []*outcome
	for _, o := range all {
		if alike(o) {
			out = append(out, o)
		}
	}
	return out
}

// atLeast returns these if they are enough, otherwise all.
func atLeast(enough int, these, all []*outcome) []*outcome {
	if len(these) < enough {
		return all
	}
	return these
}

// bandwidth is the bandwidth of an unlimited link. A copy with a limit only gives a lower
// bound.
func bandwidth(link, all []*outcome) float64 {
	for _, group := range [][]*outcome{link, all} {
		// A copy that was alone on the link is better evidence: early members of a gang
		// are held back until all are ready.
		var alone, together []float64
		for _, o := range group {
			switch {
			case o.capped(), o.packed():
			case o.share() == 1:
				alone = append(alone, o.rate())
			default:
				together = append(together, o.rate()*o.share())
			}
		}
		if free := cmp.Or(median(alone), median(together)); free > 0 {
			return free
		}
	}
	least := float64(usualBandwidth)
	for _, o := range link {
		least = math.Max(least, o.rate()*o.share())
	}
	return least
}

// slack is by how much copies stay below their limits; 0: unknown.
func slack(link []*outcome) float64 {
	var lost []float64
	for _, o := range link {
		if o.capped() && !o.packed() {
			lost = append(lost, math.Max(1, o.ceiling()*(o.ceiling()/o.rate()-1)))
		}
	}
	return median(lost)
}

// overrun is by how much compressed copies exceed theirs; 0: unknown.
func overrun(link []*outcome) float64 {
	var beyond []float64
	for _, o := range link {
		if o.capped() && o.packed() {
			beyond = append(beyond, math.Max(1, o.ceiling()*(1-o.ceiling()/o.rate())))
		}
	}
	return median(beyond)
}

// overhead is the time of a move without its copy; 0: unknown. Gangs are not used,
// because their members wait for each other.
func overhead(link []*outcome) time.Duration {
	var took []float64
	for _, o := range link {
		if o.share() == 1 {
			took = append(took, math.Max(0, (o.total-o.m.Cost.Elapsed).Seconds()))
		}
	}
	return seconds(median(took))
}

// Bounds of the search for the rise.
const leastRise, mostRise = 0.25, 8.0

// learnRise finds the ratio of dirty rates during copies to those in the profiles, from
// the amount sent.
func (m Model) learnRise(like []*outcome) float64 {
	var found []float64
	for _, o := range like {
		if p := o.m.Predicted; p == nil || p.Profile == nil {
			continue
		}
		rise := o.rise
		if !o.risen {
			rise = m.riseOf(o)
		}
		if !o.packed() && !o.capped() { // then it does not depend on m
			o.risen, o.rise = true, rise
		}
		if rise > 0 {
			found = append(found, rise)
		}
	}
	return tempered(found, usualRise)
}

// riseOf finds it for one outcome; 0: it made no difference.
func (m Model) riseOf(o *outcome) float64 {
	p := o.m.Predicted
	k, l := m.known(), linkOf(*p)
	if o.capped() {
		k.slack, k.overrun, l.Limits.BytesPerSecond = 0, 0, int64(o.rate())
	} else {
		k.bandwidth, l.Limits.BytesPerSecond = o.rate()*o.share(), 0
	}
	at := func(rise float64) float64 {
		k.rise = rise
		return k.followOn(o.curve, profiled(p), l).sent
	}
	if at(mostRise)-at(leastRise) < 0.1*float64(p.Profile.FilledBytes) {
		return 0
	}
	low, high := leastRise, mostRise
	for range 16 { // precision one in ten thousand
		if mid := math.Sqrt(low * high); at(mid) < o.sent {
			low = mid
		} else {
			high = mid
		}
	}
	return math.Sqrt(low * high)
}

// learnRest finds the downtime without sending memory. It stores each copy's simulated
// course.
func (m Model) learnRest(link []*outcome, courses []course) time.Duration {
	var found []float64
	k := m.known()
	for _, o := range link {
		if p := o.m.Predicted; p != nil && p.Profile != nil && p.Converges {
			c := k.followOn(o.curve, profiled(p), linkOf(*p))
			courses[o.place] = c
			found = append(found, math.Max(0.0005, (o.downtime-c.downtime-c.still).Seconds()))
		}
	}
	if len(found) == 0 {
		return 0
	}
	return seconds(tempered(found, m.usualRest().Seconds()))
}

// tempered is the median of the samples, drawn towards usual while there are few; 0 if
// there are none.
func tempered(found []float64, usual float64) float64 {
	if len(found) == 0 {
		return 0
	}
	n := float64(len(found))
	return math.Exp((n*math.Log(median(found)) + 2*math.Log(usual)) / (n + 2))
}

func ratio(got, said float64) float64 {
	if !(got > 0) || !(said > 0) {
		return 1
	}
	return got / said
}

// spreadOf predicts the next ratio: the median, with an interval of 90 % of the ratios.
// If they are too few, missing mixes in the usual interval.
func spreadOf(ratios []float64, usual spread, missing float64) spread {
	n := len(ratios)
	if n == 0 {
		return usual
	}
	ratios = slices.Clone(ratios)
	slices.Sort(ratios)
	mid := tempered(ratios, 1)
	// The k-th smallest of n bounds the next from below k times in n+1.
	k := max(1, int(0.05*float64(n+1)))
	low, high := math.Log(ratios[k-1]/mid), math.Log(ratios[n-k]/mid)
	if missing = max(missing, float64(whole-n)/whole); missing > 0 {
		low = missing*math.Log(usual.low) + (1-missing)*low
		high = missing*math.Log(usual.high) + (1-missing)*high
	}
	const least = 0.05 // variation from clocks and schedulers alone
	return spread{mid * math.Exp(math.Min(low, -least)), mid, mid * math.Exp(math.Max(high, least))}
}

// median of no values is 0.
func median(of []float64) float64 {
	if len(of) == 0 {
		return 0
	}
	sorted := slices.Clone(of)
	slices.Sort(sorted)
	if n := len(sorted); n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[len(sorted)/2]
}
