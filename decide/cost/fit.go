package cost

import (
	"cmp"
	"math"
	"slices"
	"time"

	"pagurus/fleet"
)

// Subject is the move to come: what past ones may have in common with it.
type Subject struct {
	Kind     fleet.Kind
	Job      fleet.JobID
	From, To fleet.HostID
	ForOwner bool // it leaves a host to its owner, whose programs have the CPU first
}

// How many past moves say more than more of them that are less alike.
const (
	fewOwned = 2 // for owners, or for none: of all that there is to learn
	fewLinks = 2 // between the same two hosts, of the link
	fewLikes = 5 // of the same job, or between the same two hosts, of the errors
	// whole is from how many outcomes on their own quantiles can bound nine in
	// ten: below it the fewer there are the more is added.
	whole = 19
	// Remembered bounds what is learnt from: the latest say most.
	Remembered = 200
)

// besideOwner is what an owner's programs leave of a copy's bandwidth, for as long as
// no move has shown it: a third where host and owner had a third of a core between
// them, all where there are processors enough for both.
const besideOwner = 0.5

// outcome is a past move that arrived, and what it cost.
type outcome struct {
	m        fleet.Migration
	total    time.Duration
	downtime time.Duration
	elapsed  float64 // seconds from the first byte to the last
	sent     float64 // bytes
	ended    time.Time
	curve    curve // of its profile, if it has one

	place int     // in its history
	risen bool    // rise is known
	rise  float64 // of one that nothing but its link bounded, whatever else is known; 0: it says nothing
}

// rate is what the link, or the ceiling, gave it while it sent.
func (o *outcome) rate() float64 {
	if o.capped() {
		return o.sent / o.elapsed
	}
	looking := math.Max(float64(o.m.Cost.TotalBytes), 0) / looked
	return o.sent / math.Max(o.elapsed-looking, o.elapsed/4)
}

// ceiling is what the copy was allowed; 0: it had none.
func (o *outcome) ceiling() float64 {
	if o.m.Predicted == nil {
		return 0
	}
	return math.Max(0, float64(o.m.Predicted.Limits.BytesPerSecond))
}

// capped reports whether the copy's ceiling and not the link bounded it.
func (o *outcome) capped() bool { return o.ceiling() > 0 && o.sent/o.elapsed >= 0.7*o.ceiling() }

func (o *outcome) share() float64 {
	if o.m.Predicted == nil {
		return 1
	}
	return float64(max(o.m.Predicted.Share, 1))
}

// Total is how long a migration took that has ended, from its first order.
func Total(m fleet.Migration) time.Duration {
	if len(m.Entered) == 0 {
		return 0
	}
	return max(0, m.Entered[len(m.Entered)-1].At.Sub(m.Entered[0].At))
}

// outcomeOf gives what a move cost that arrived; nil: it did not, or was slowed until
// it could, or its source did not say.
func outcomeOf(m fleet.Migration) *outcome {
	o := &outcome{m: m, total: Total(m), downtime: m.Cost.Downtime, sent: float64(m.Cost.SentBytes)}
	if m.Phase != fleet.Finished || m.Orphan || m.Cost.SlowedPercent > 0 || o.total <= 0 || o.sent <= 0 || m.Cost.Elapsed <= 0 || o.downtime < 0 {
		return nil
	}
	o.elapsed = m.Cost.Elapsed.Seconds()
	o.ended = m.Entered[len(m.Entered)-1].At
	if m.Predicted != nil && m.Predicted.Profile != nil {
		o.curve = newCurve(*m.Predicted.Profile)
	}
	return o
}

// latest sorts outcomes, latest first, the order of the others given by their
// names so that the same past always teaches the same.
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

// some gives those that are alike if there are enough of them, otherwise all.
func some(enough int, all []*outcome, alike func(*outcome) bool) []*outcome {
	return atLeast(enough, only(all, alike), all)
}

// only gives those that are alike.
func only(all []*outcome, alike func(*outcome) bool) []*outcome {
	var out []*outcome
	for _, o := range all {
		if alike(o) {
			out = append(out, o)
		}
	}
	return out
}

// atLeast gives these if they are enough, otherwise all.
func atLeast(enough int, these, all []*outcome) []*outcome {
	if len(these) < enough {
		return all
	}
	return these
}

// bandwidth is what a link gives that nothing but itself bounds. A copy under
// a ceiling says only that it gives at least that.
func bandwidth(link, all []*outcome) float64 {
	for _, group := range [][]*outcome{link, all} {
		// One that had the link for itself says it better: of a gang the early
		// ones are held back until all are ready.
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

// slack is by how much copies stay below their ceilings; 0: not known.
func slack(link []*outcome) float64 {
	var lost []float64
	for _, o := range link {
		if o.capped() && !o.packed() {
			lost = append(lost, math.Max(1, o.ceiling()*(o.ceiling()/o.rate()-1)))
		}
	}
	return median(lost)
}

// overrun is by how much copies that are compressed go beyond theirs; 0: not known.
func overrun(link []*outcome) float64 {
	var beyond []float64
	for _, o := range link {
		if o.capped() && o.packed() {
			beyond = append(beyond, math.Max(1, o.ceiling()*(1-o.ceiling()/o.rate())))
		}
	}
	return median(beyond)
}

// overhead is what a move takes beside its copy; 0: not known. Of a gang it
// says nothing: its members wait for each other.
func overhead(link []*outcome) time.Duration {
	var took []float64
	for _, o := range link {
		if o.share() == 1 {
			took = append(took, math.Max(0, (o.total-o.m.Cost.Elapsed).Seconds()))
		}
	}
	return seconds(median(took))
}

// The rise is looked for between these.
const leastRise, mostRise = 0.25, 8.0

// learnRise finds how much faster guests dirtied while they were copied than
// their profiles said, by how much had to be sent.
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
		if !o.packed() && !o.capped() { // then nothing of m matters to it
			o.risen, o.rise = true, rise
		}
		if rise > 0 {
			found = append(found, rise)
		}
	}
	return tempered(found, usualRise)
}

// riseOf finds it for one; 0: whatever it was, it made no difference.
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
		return k.followOn(o.curve, *p.Profile, l).sent
	}
	if at(mostRise)-at(leastRise) < 0.1*float64(p.Profile.FilledBytes) {
		return 0
	}
	low, high := leastRise, mostRise
	for range 16 { // a ten-thousandth
		if mid := math.Sqrt(low * high); at(mid) < o.sent {
			low = mid
		} else {
			high = mid
		}
	}
	return math.Sqrt(low * high)
}

// learnRest finds what a pause takes beside sending memory. It notes how each copy
// would have gone.
func (m Model) learnRest(link []*outcome, courses []course) time.Duration {
	var found []float64
	k := m.known()
	for _, o := range link {
		if p := o.m.Predicted; p != nil && p.Profile != nil && p.Converges {
			c := k.followOn(o.curve, *p.Profile, linkOf(*p))
			courses[o.place] = c
			found = append(found, math.Max(0.0005, (o.downtime-c.downtime-c.mapped).Seconds()))
		}
	}
	if len(found) == 0 {
		return 0
	}
	return seconds(tempered(found, m.usualRest().Seconds()))
}

// tempered is the median of what was found, drawn towards what is usual while
// little was; 0 if nothing was found.
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

// spreadOf is what the ratios say of the next one: around their median, as far as nine
// in ten of them lie; in so far as they are too few for that, as far as is usual.
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
	const least = 0.05 // clocks and schedulers alone make as much difference
	return spread{mid * math.Exp(math.Min(low, -least)), mid, mid * math.Exp(math.Max(high, least))}
}

// median of nothing is 0.
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
