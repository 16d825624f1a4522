package cost

import "math"

const (
	// lastOfGuest is how many of a guest's own moves say how its next one will be: it
	// does now what it did then, and earlier ones may be of another phase of its program.
	lastOfGuest = 3
	// For how many of these what all moves have shown counts: as one, and for less where
	// they are outside of its interval, since the guest is of another kind then.
	others       = 1
	othersBeyond = 1 / 4.0
)

// ofGuest draws a model towards what the last moves of the same guest have shown. They
// count at once: other guests, also of its job, may have other programs or processes.
func (m Model) ofGuest(own []*outcome, about Subject) Model {
	var total, together, downtime, sent []float64
	k := m.known()
	for _, p := range own {
		said := p.m.Predicted
		if said == nil || said.Profile == nil || !said.Converges || said.Kind != about.Kind || said.ForOwner != about.ForOwner {
			continue
		}
		c := k.followOn(p.curve, profiled(said), linkOf(*said))
		of := &total
		if p.share() > 1 {
			of = &together
		}
		*of = append(*of, ratio(p.total.Seconds(), (k.overhead+c.took+c.still).Seconds()))
		downtime = append(downtime, ratio(p.downtime.Seconds(), (k.rest+c.downtime+c.still).Seconds()))
		if sent = append(sent, ratio(p.sent, c.sent)); len(sent) == lastOfGuest {
			break
		}
	}
	if len(sent) == 0 {
		return m
	}
	k.total, k.together, k.sent = k.total.towards(total, others), k.together.towards(together, others), k.sent.towards(sent, others)
	// A downtime is short, and differs from one move to the next by more than those of
	// two guests do.
	k.downtime = k.downtime.towards(downtime, math.Inf(1))
	return k
}

// towards moves a spread to the median of these ratios, where what it says itself counts
// for so many of them while they are within it. Beyond, one may be an accident: both
// intervals are held.
func (s spread) towards(ratios []float64, itself float64) spread {
	n, mid := float64(len(ratios)), median(ratios)
	if n == 0 {
		return s
	}
	low, high := s.low, s.high
	if mid < s.low || mid > s.high {
		itself = othersBeyond
	} else {
		low, high = math.Inf(1), 0
	}
	by := math.Pow(mid/s.mid, n/(n+itself))
	return spread{math.Min(low, s.low*by), s.mid * by, math.Max(high, s.high*by)}
}
