// Package cost predicts what a migration will cost before it starts: from how
// the guest uses its memory, from the link, and from what past moves were
// predicted to cost and did. Whether a running one converges is for
// lifecycle.Copy to judge.
//
// It must not know how a copy is made, and package sim must not import it: a
// simulator that shares the predictor proves nothing. Its tests run against
// cases worked out by hand and against laws that every prediction must keep.
package cost

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"pagurus/fleet"
)

// Link is what one copy has to go by. What is not said has a default: one copy,
// no ceiling.
type Link struct {
	Limits fleet.Limits // of the copy, filled in
	Share  int          // copies that use the same link at the same time, this one included
}

// Model is what was learnt from past moves. Fit makes one; the zero Model is
// that of somebody who has seen none.
type Model struct {
	kind      fleet.Kind    // of the guests
	bandwidth float64       // bytes a second of a link without ceiling
	slack     float64       // bytes a second by which a copy stays below its ceiling
	overrun   float64       // bytes a second by which a compressed one goes beyond it
	overhead  time.Duration // of a move: all but sending memory
	rest      time.Duration // of the downtime: all but sending memory
	rise      float64       // how much faster a guest dirties while it is copied than before
	packed    float64       // what compression leaves of memory
	total     spread
	together  spread // of the total, where several copies use a link
	downtime  spread
	sent      spread
	basis     string
}

// spread is what past outcomes were, as multiples of what the model says.
type spread struct{ low, mid, high float64 }

// What is believed before anything was learnt. Others saw dirty rates while
// migrating of two to three times those before, and the looks of package ram also
// miss what is written without a change. Of the rises tried 1.3 fits best what was
// measured here, with emulated guests: of the 38 copies in docs/figures/predict.json
// that were not compressed it says what they sent to 1.7 % in the median, and that
// all converge, as they did; 2 says it to 3.9 %, 2.5 to 5.9 %, and both that two do not.
const (
	usualBandwidth = 300 << 20
	usualSlack     = 3 << 20
	usualOverrun   = 1 << 20
	usualOverhead  = 300 * time.Millisecond
	usualRest      = 45 * time.Millisecond // from the order to stop to the word that it runs
	// CRIU writes down and makes again each process of a container, which QEMU has
	// no need to.
	usualRestOfContainers = 200 * time.Millisecond
	usualRise             = 1.3
	usualDowntime         = 50 * time.Millisecond
	usualRounds           = 40
	// looked is how fast a mechanism looks through memory for what it has to
	// send: zero pages are not sent but looked at.
	looked = 768 << 20
	// settling is how long a copy goes on between the moment when it is good
	// enough and the pause: a commit, two messages. Its rounds shrink further
	// meanwhile, and none is shorter than leastRound.
	settling   = 40 * time.Millisecond
	leastRound = 5 * time.Millisecond
	mostRounds = 1000
)

var (
	usualTotal          = spread{1 / 2.0, 1, 2}
	usualDowntimeSpread = spread{1 / 3.0, 1, 3}
	usualSent           = spread{1 / 1.6, 1, 1.6}
)

// usualRests are of kinds that differ in it.
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

// Predict says what one migration of a guest with this profile will cost.
func (m Model) Predict(p fleet.Profile, l Link) fleet.Prediction {
	m, l = m.known(), l.known()
	c := m.followRounds(p, l)
	total := m.totalOf(l)
	out := fleet.Prediction{
		Ready:     total.times(m.overhead + c.ready).Value,
		Total:     total.times(m.overhead + c.took + c.mapped),
		Downtime:  m.downtime.times(m.rest + c.downtime + c.mapped),
		Mapping:   m.downtime.times(c.mapped).Value,
		Bytes:     m.sent.bytes(c.sent),
		Rounds:    fleet.Range[int]{Value: c.rounds, Low: max(1, c.rounds/2), High: c.rounds + max(1, c.rounds/2)},
		Converges: c.converges, Basis: m.basis,
		LinkBytesPerSecond: m.onLink(l, c.bandwidth), Limits: l.Limits, Share: l.Share,
	}
	if !c.converges {
		out.Why = fmt.Sprintf("a pass of %s leaves %s changed, and sending that takes %s where %s is allowed",
			words(c.pass), mebi(c.left), words(c.downtime), words(l.Limits.Downtime))
		out.Help = m.help(p, l, c)
	}
	return out
}

// totalOf is what the totals of such copies were. Members of a gang wait for each
// other, and their hosts have more to do at once than by a move alone.
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

// course is how a copy goes, round by round, and where it ends.
type course struct {
	bandwidth float64       // of memory, before it is compressed
	took      time.Duration // from the first byte to the last
	ready     time.Duration // of that, before the guest may switch
	downtime  time.Duration // sending what is left at the end
	pass      time.Duration // the last round
	mapped    time.Duration // for its mappings, when it is suspended and is not sent any more
	sent      float64
	left      float64
	rounds    int
	converges bool
}

// followRounds goes through the rounds of a copy: each sends what was dirtied while
// the one before it was sent. More bandwidth makes every round shorter, so what
// it leaves is no more, and the copy never takes longer.
func (m Model) followRounds(p fleet.Profile, l Link) course { return m.followOn(newCurve(p), p, l) }

// followOn is follow for who has made the profile's curve before.
func (m Model) followOn(set curve, p fleet.Profile, l Link) course {
	rate, free := m.memoryRate(l)
	c := course{bandwidth: rate, mapped: m.mapped(p)}
	memory := math.Max(float64(p.MemoryBytes), float64(p.FilledBytes))
	c.sent = filled(p, l.Limits)
	// Under a ceiling there is time enough to look meanwhile.
	pass := math.Max(c.sent/c.bandwidth, c.sent/free+math.Max(memory, 0)/looked)
	took := pass
	switch l.Limits.Mode {
	case fleet.StopAndCopy:
		c.rounds, c.converges = 1, true
		c.took, c.pass, c.downtime = seconds(pass), seconds(pass), seconds(pass)
		return c
	case fleet.PostCopy: // what is left goes over while the guest runs
		c.left = set.within(pass * m.rise)
		c.rounds, c.converges, c.sent = 1, true, c.sent+c.left
		c.took, c.ready, c.pass = seconds(pass+c.left/c.bandwidth), seconds(pass), seconds(pass)
		return c
	}
	for c.rounds = 1; ; c.rounds++ {
		c.left = set.within(pass * m.rise)
		last := c.left / c.bandwidth
		c.converges = last <= l.Limits.Downtime.Seconds()
		if c.converges || c.rounds >= l.Limits.Rounds {
			break
		}
		pass = last
		took += pass
		c.sent += c.left
	}
	last := c.left / c.bandwidth
	c.took, c.ready, c.pass = seconds(took+last), seconds(took), seconds(pass)
	c.sent = m.onLink(l, c.sent+c.left)
	// The rounds go on until the order to switch comes.
	for spent := 0.0; c.converges && spent < settling.Seconds(); {
		pass := math.Max(last, leastRound.Seconds())
		spent += pass
		next := math.Min(last, set.within(pass*m.rise)/c.bandwidth)
		if next == last { // so are all that follow
			break
		}
		last = next
	}
	c.downtime = seconds(last)
	return c
}

// help says what would make a copy converge that does not.
func (m Model) help(p fleet.Profile, l Link, c course) string {
	at := func(bandwidth float64) bool {
		faster := m
		faster.bandwidth = bandwidth
		link := l
		link.Limits.BytesPerSecond, link.Limits.Compress, link.Share = 0, "", 1
		return faster.followRounds(p, link).converges
	}
	allow := fmt.Sprintf("a downtime of %s allowed", words(roundUp(c.downtime)))
	const most = 100 << 30 // bytes a second: no network of today carries more
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

// curve is the dirty set: how much is dirtied within a time. It rises, from
// nothing at 0, in straight pieces; beyond the last point it goes on as in the
// last piece, up to all memory there is.
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

// within gives the bytes dirtied within so many seconds.
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

// roundUp leaves a tenth of room, in steps of 10 ms.
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

// Grown is what a look says of a guest that occupies more of its host's memory by now,
// in bytes, and may have at most so many: what has come since is in use. One that does
// not occupy more is as it was seen.
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

// Guess says what a migration will cost of a guest that nobody has looked at:
// as if it changed a twentieth of its memory a second for each CPU it uses. Its
// intervals are twice as wide on either side.
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
