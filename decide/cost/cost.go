// Package cost predicts a migration's cost before it starts, from the guest's profile,
// the link, and the predictions and outcomes of past moves. lifecycle.Copy judges whether
// a running one converges.
//
// It must not know how a copy is made, and package sim must not import it: a simulator
// that shares the predictor proves nothing. Its tests use cases computed by hand and laws
// that every prediction must keep.
package cost

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"pagurus/fleet"
)

// Link is the bandwidth of one copy. The zero Link is one copy without a limit.
type Link struct {
	Limits fleet.Limits // of the copy, complete
	Share  int          // copies on the same link at the same time, including this one
}

// Model is what was learnt from past moves. Fit makes one; the zero Model has learnt
// nothing.
type Model struct {
	kind      fleet.Kind    // of the guests
	bandwidth float64       // bytes a second of an unlimited link
	looked    float64       // bytes a second that are scanned
	slack     float64       // bytes a second by which a copy stays below its limit
	overrun   float64       // bytes a second by which a compressed copy exceeds its limit
	overhead  time.Duration // of a move, except sending memory
	rest      time.Duration // of the downtime, except sending memory
	rise      float64       // ratio of the dirty rate during a copy to that before
	packed    float64       // ratio of compressed to uncompressed memory
	packing   float64       // bytes a second that hosts compress
	total     spread
	together  spread // of the total, if several copies share a link
	downtime  spread
	sent      spread
	basis     string
}

// spread is past outcomes as multiples of the model's.
type spread struct{ low, mid, high float64 }

// Values assumed before learning. Others saw dirty rates while migrating of two to three
// times those before, and the sampler misses writes without a change. Of the rises tried,
// 1.3 fits the measurements here best, with emulated guests. For the 38 uncompressed
// copies of the first docs/figures/predict.json (eeb9ae8) it predicts what they sent to
// 1.7 % in the median, and that all converge, as they did. 2 predicts it to 3.9 %, 2.5 to
// 5.9 %, and both predict that two do not converge.
const (
	usualBandwidth = 300 << 20
	usualSlack     = 3 << 20
	usualOverrun   = 1 << 20
	usualOverhead  = 300 * time.Millisecond
	usualRest      = 45 * time.Millisecond // from the suspend order to the report that the guest runs
	// CRIU dumps and restores each process of a container, unlike QEMU.
	usualRestOfContainers = 200 * time.Millisecond
	usualRise             = 1.3
	usualDowntime         = 50 * time.Millisecond
	usualRounds           = 40
	// looked is the rate at which a mechanism scans memory: zero pages are scanned, but
	// not sent.
	looked = 768 << 20
	// settling is how long a copy continues from convergence to the suspension: a commit,
	// two messages. Its rounds shrink further meanwhile, and none is shorter than
	// leastRound.
	settling   = 40 * time.Millisecond
	leastRound = 5 * time.Millisecond
	mostRounds = 1000
)

var (
	usualTotal          = spread{1 / 2.0, 1, 2}
	usualDowntimeSpread = spread{1 / 3.0, 1, 3}
	usualSent           = spread{1 / 1.6, 1, 1.6}
)

// usualRests are the kinds' own values of usualRest.
var usualRests = map[fleet.Kind]time.Duration{fleet.Container: usualRestOfContainers}

func (m Model) usualRest() time.Duration {
	if rest, ok := usualRests[m.kind]; ok {
		return rest
	}
	return usualRest
}

// known fills in what was not learnt.
func (m Model) known() Model {
	if m.bandwidth <= 0 {
		m.bandwidth = usualBandwidth
	}
	if m.looked <= 0 {
		m.looked = looked
	}
	if m.slack <= 0 {
		m.slack = usualSlack
	}
	if m.overrun <= 0 {
		m.overrun = usualOverrun
	}
	if m.overhead <= 0 {
		m.overhead = usualOverhead
	}
	if m.rest <= 0 {
		m.rest = m.usualRest()
	}
	if m.rise <= 0 {
		m.rise = usualRise
	}
	if m.packing <= 0 {
		m.packing = packingRate
	}
	if m.packed <= 0 {
		m.packed = usualPacked
	}
	for _, s := range []struct {
		of    *spread
		usual spread
	}{{&m.total, usualTotal}, {&m.downtime, usualDowntimeSpread}, {&m.sent, usualSent}} {
		if !(s.of.mid > 0) {
			*s.of = s.usual
		}
	}
	if !(m.together.mid > 0) {
		m.together = m.total
	}
	if m.basis == "" {
		m.basis = "no move yet to learn from"
	}
	return m
}

// Predict predicts the cost of one migration of a guest with this profile.
func (m Model) Predict(p fleet.Profile, l Link) fleet.Prediction {
	m, l = m.known(), l.known()
	c := m.followRounds(p, l)
	total := m.totalOf(l)
	out := fleet.Prediction{
		Ready:     total.times(m.overhead + c.ready).Value,
		Total:     total.times(m.overhead + c.took + c.still),
		Downtime:  m.downtime.times(m.rest + c.downtime + c.still),
		Mapping:   m.downtime.times(c.mapped).Value,
		Bytes:     m.sent.bytes(c.sent),
		Rounds:    fleet.Range[int]{Value: c.rounds, Low: max(1, c.rounds/2), High: c.rounds + max(1, c.rounds/2)},
		Converges: c.converges, Basis: m.basis,
		LinkBytesPerSecond: m.onLink(l, c.bandwidth), Limits: l.Limits, Share: l.Share,
	}
	if !c.converges {
		out.Why = fmt.Sprintf("a round of %s leaves %s changed, and sending that takes %s where %s is allowed",
			words(c.round), mebi(c.left), words(c.downtime), words(l.Limits.Downtime))
		out.Help = m.help(p, l, c)
	}
	return out
}

// totalOf is the spread of the totals of such copies. Members of a gang wait for each
// other, and load their hosts more than a single move.
func (m Model) totalOf(l Link) spread {
	if l.Share > 1 {
		return m.together
	}
	return m.total
}

func (l Link) known() Link {
	if l.Limits.Downtime <= 0 {
		l.Limits.Downtime = usualDowntime
	}
	if l.Limits.Rounds <= 0 {
		l.Limits.Rounds = usualRounds
	}
	l.Limits.Rounds = min(l.Limits.Rounds, mostRounds)
	l.Limits.BytesPerSecond = max(l.Limits.BytesPerSecond, 0)
	l.Share = max(l.Share, 1)
	return l
}

// course is a simulated copy.
type course struct {
	bandwidth float64       // before compression
	took      time.Duration // from the first byte to the last
	ready     time.Duration // of that, until the guest may switch
	downtime  time.Duration // for sending the remaining pages
	round     time.Duration // the last round
	mapped    time.Duration // suspended for its mappings, when nothing is sent any more
	still     time.Duration // suspended for its mappings and its processes
	sent      float64
	left      float64
	rounds    int
	converges bool
}

// followRounds simulates the rounds of a copy: each sends what was dirtied during the one
// before. More bandwidth shortens every round, which then leaves no more, so the copy
// never takes longer.
func (m Model) followRounds(p fleet.Profile, l Link) course { return m.followOn(newCurve(p), p, l) }

// followOn is followRounds with the profile's curve.
func (m Model) followOn(set curve, p fleet.Profile, l Link) course {
	rate, free := m.memoryRate(l)
	c := course{bandwidth: rate, mapped: m.mapped(p)}
	c.still = c.mapped + m.forked(p)
	memory := math.Max(float64(p.MemoryBytes), float64(p.FilledBytes))
	c.sent = filled(p, l.Limits)
	// With a limit there is enough time to scan meanwhile.
	round := math.Max(c.sent/c.bandwidth, c.sent/free+math.Max(memory, 0)/cmp.Or(m.looked, looked))
	took := round
	switch l.Limits.Mode {
	case fleet.StopAndCopy:
		c.rounds, c.converges = 1, true
		c.took, c.round, c.downtime = seconds(round), seconds(round), seconds(round)
		return c
	case fleet.PostCopy: // the rest is sent while the guest runs
		c.left = set.within(round * m.rise)
		c.rounds, c.converges, c.sent = 1, true, c.sent+c.left
		c.took, c.ready, c.round = seconds(round+c.left/c.bandwidth), seconds(round), seconds(round)
		return c
	}
	for c.rounds = 1; ; c.rounds++ {
		c.left = set.within(round * m.rise)
		last := c.left / c.bandwidth
		c.converges = last <= l.Limits.Downtime.Seconds()
		if c.converges || c.rounds >= l.Limits.Rounds {
			break
		}
		round = last
		took += round
		c.sent += c.left
	}
	last := c.left / c.bandwidth
	c.took, c.ready, c.round = seconds(took+last), seconds(took), seconds(round)
	c.sent = m.onLink(l, c.sent+c.left)
	// The rounds continue until the switch order.
	for spent := 0.0; c.converges && spent < settling.Seconds(); {
		round := math.Max(last, leastRound.Seconds())
		spent += round
		next := math.Min(last, set.within(round*m.rise)/c.bandwidth)
		if next == last { // all later ones are equal
			break
		}
		last = next
	}
	c.downtime = seconds(last)
	return c
}

// help says what would make a copy converge.
func (m Model) help(p fleet.Profile, l Link, c course) string {
	at := func(bandwidth float64) bool {
		faster := m
		faster.bandwidth = bandwidth
		link := l
		link.Limits.BytesPerSecond, link.Limits.Compress, link.Share = 0, "", 1
		return faster.followRounds(p, link).converges
	}
	allow := fmt.Sprintf("a downtime of %s allowed", words(roundUp(c.downtime)))
	const most = 100 << 30 // bytes a second: more than today's networks
	if !at(most) {
		return allow + ", or a guest that does less meanwhile"
	}
	low, high := c.bandwidth, float64(most)
	for range 60 {
		if mid := math.Sqrt(low * high); at(mid) {
			high = mid
		} else {
			low = mid
		}
	}
	fast := fmt.Sprintf("%s a second for this copy instead of %s", mebi(high), mebi(c.bandwidth))
	if limit := float64(l.Limits.BytesPerSecond); limit > 0 && limit < high && m.bandwidth/float64(l.Share) >= high {
		fast = fmt.Sprintf("a ceiling of %s a second instead of %s", mebi(high), mebi(limit))
	} else if l.Share > 1 && m.bandwidth >= high {
		fast = "moving alone, not with " + fmt.Sprint(l.Share-1) + " others over the same link"
	}
	return fast + ", or " + allow
}

// curve is the dirty set: how much is dirtied within a time. It rises from 0 in straight
// pieces. Beyond the last point it continues the last piece, up to all memory.
type curve struct {
	at   []float64 // seconds
	set  []float64 // bytes
	most float64
}

func newCurve(p fleet.Profile) curve {
	c := curve{at: make([]float64, 1, 1+len(p.Changed)), set: make([]float64, 1, 1+len(p.Changed)),
		most: math.Max(float64(max(p.MemoryBytes, p.FilledBytes)), 0)}
	points := p.Changed
	rising := func(a, b fleet.Changed) int { return cmp.Compare(a.Within, b.Within) }
	if !slices.IsSortedFunc(points, rising) {
		points = slices.Clone(points)
		slices.SortStableFunc(points, rising)
	}
	for _, q := range points {
		last := len(c.at) - 1
		if q.Within.Seconds() <= c.at[last] {
			continue
		}
		c.at = append(c.at, q.Within.Seconds())
		c.set = append(c.set, math.Min(c.most, math.Max(c.set[last], float64(q.Bytes))))
	}
	return c
}

// within returns the bytes dirtied within t seconds.
func (c curve) within(t float64) float64 {
	last := len(c.at) - 1
	if last == 0 || !(t > 0) {
		return 0
	}
	i := 1
	for i < last && t > c.at[i] {
		i++
	}
	slope := (c.set[i] - c.set[i-1]) / (c.at[i] - c.at[i-1])
	return math.Min(c.most, c.set[i-1]+slope*(t-c.at[i-1]))
}

func (s spread) times(d time.Duration) fleet.Range[time.Duration] {
	by := func(f float64) time.Duration { return seconds(d.Seconds() * f) }
	return fleet.Range[time.Duration]{Value: by(s.mid), Low: by(s.low), High: by(s.high)}
}

func (s spread) bytes(n float64) fleet.Range[int64] {
	by := func(f float64) int64 { return int64(math.Min(n*f, math.MaxInt64/2)) }
	return fleet.Range[int64]{Value: by(s.mid), Low: by(s.low), High: by(s.high)}
}

func seconds(s float64) time.Duration {
	return time.Duration(math.Min(s*float64(time.Second), math.MaxInt64/4))
}

// roundUp adds a tenth, in steps of 10 ms.
func roundUp(d time.Duration) time.Duration {
	const step = 10 * time.Millisecond
	return (d + d/10 + step - 1) / step * step
}

func words(d time.Duration) string {
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

func mebi(bytes float64) string {
	if bytes < 10<<20 {
		return fmt.Sprintf("%.1f MiB", bytes/(1<<20))
	}
	return fmt.Sprintf("%.0f MiB", bytes/(1<<20))
}

// Marked is a profile as it is from a marked moment on, and whether there is one: less changes, and scratch memory has been given back.
func Marked(p fleet.Profile) (fleet.Profile, bool) {
	if len(p.AtMark) == 0 && p.Scratch <= 0 {
		return p, false
	}
	if len(p.AtMark) > 0 {
		p.Changed = p.AtMark
	}
	p.FilledBytes = max(0, p.FilledBytes-max(0, p.Scratch))
	return p, true
}

// profiled is the profile by which a prediction was made.
func profiled(p *fleet.Prediction) fleet.Profile {
	if !p.AtMark {
		return *p.Profile
	}
	marked, _ := Marked(*p.Profile)
	return marked
}

// Grown updates a profile for a guest that now occupies more of its host's memory, at
// most most bytes: memory added since counts as used. Otherwise the profile is unchanged.
func Grown(p fleet.Profile, resident, most int64) fleet.Profile {
	more := min(resident-p.Resident, most-p.FilledBytes)
	if p.Resident <= 0 || more <= 0 {
		return p
	}
	p.FilledBytes += more
	p.MemoryBytes = max(p.MemoryBytes, p.FilledBytes)
	p.Resident = resident
	if p.Cache != nil {
		c := *p.Cache
		c.FreeBytes = max(0, c.FreeBytes-more)
		p.Cache = &c
	}
	return p
}

// Guess predicts without a profile: it assumes that the guest changes a twentieth of its
// memory a second for each CPU it uses. The intervals are twice as wide on either side.
func (m Model) Guess(memoryBytes int64, f fleet.GuestFacts, l Link) fleet.Prediction {
	p := fleet.Profile{MemoryBytes: memoryBytes, FilledBytes: memoryBytes}
	if f.ResidentBytes > 0 {
		p.FilledBytes = min(memoryBytes, f.ResidentBytes)
	}
	part := int64(float64(p.FilledBytes) / 20 * math.Max(0, math.Min(f.CPUs, 16)))
	p.Changed = []fleet.Changed{{Within: time.Second, Bytes: part}, {Within: 10 * time.Second, Bytes: 4 * part}}
	m = m.known()
	for _, s := range []*spread{&m.total, &m.together, &m.downtime, &m.sent} {
		s.low, s.high = s.low*s.low/s.mid, s.high*s.high/s.mid
	}
	m.basis = "a guess, since the guest has not been sampled; " + m.basis
	return m.Predict(p, l)
}
