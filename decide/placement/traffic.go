package placement

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/graph/community"
	"gonum.org/v1/gonum/graph/simple"

	"pagurus/decide/desired"
	"pagurus/fleet"
)

// mostTraffic limits what is stored for a job with hundreds of guests: a
// three-dimensional grid has three pairs a guest.
const mostTraffic = 1000

// Traffic sums up what a job's ranks have sent to each other, by their guests, largest
// pair first. Invalid traces are skipped.
func Traffic(j fleet.Job, traces []fleet.Trace) []fleet.Traffic {
	guests, of := map[fleet.GuestID]int{}, map[int]int{}
	for i, id := range desired.GuestIDs(j) {
		guests[id] = i
	}
	for _, t := range traces {
		if i, known := guests[t.Guest]; known {
			of[t.Rank] = i
		}
	}
	pairs := map[[2]int]fleet.Traffic{}
	for _, t := range traces {
		a, known := of[t.Rank]
		for _, s := range t.Sent {
			b, there := of[s.Rank]
			if !known || !there || a == b {
				continue
			}
			pair := [2]int{min(a, b), max(a, b)}
			is := pairs[pair]
			pairs[pair] = fleet.Traffic{A: pair[0], B: pair[1], Messages: sum(is.Messages, s.Messages), Bytes: sum(is.Bytes, s.Bytes)}
		}
	}
	out := make([]fleet.Traffic, 0, len(pairs))
	for _, t := range pairs {
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b fleet.Traffic) int {
		return cmp.Or(cmp.Compare(weight(b), weight(a)), cmp.Compare(a.A, b.A), cmp.Compare(a.B, b.B))
	})
	return out[:min(len(out), mostTraffic)]
}

// sum saturates, because guests may report anything.
func sum(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}

// frame is the bytes that each message adds, however small: it takes one frame.
const frame = 1500

// weight is the amount of traffic between two guests.
func weight(t fleet.Traffic) float64 { return float64(t.Bytes) + frame*float64(t.Messages) }

// pull is the traffic of guests with those in each site.
func (p parting) pull(at, guests []int) []float64 {
	out := make([]float64, len(p.room))
	for _, t := range p.traffic {
		if !p.knows(t) {
			continue
		}
		for _, ends := range [2][2]int{{t.A, t.B}, {t.B, t.A}} {
			if k := at[ends[1]]; k != nowhere && slices.Contains(guests, ends[0]) {
				out[k] += weight(t)
			}
		}
	}
	return out
}

// knows reports whether both guests exist.
func (p parting) knows(t fleet.Traffic) bool { return 0 <= t.A && t.A < t.B && t.B < len(p.at) }

// crossing is the traffic between sites.
func (p parting) crossing(at []int) float64 {
	var out float64
	for _, t := range p.traffic {
		if p.knows(t) && at[t.A] != at[t.B] {
			out += weight(t)
		}
	}
	return out
}

// groups splits the gang into groups with much internal traffic, largest first, by the
// Louvain method.
func (p parting) groups() [][]int {
	g := simple.NewUndirectedMatrix(len(p.guests), 0, 0, 0) // its nodes are ordered, unlike those of a map
	for _, t := range p.traffic {
		a, goes := slices.BinarySearch(p.guests, t.A)
		b, too := slices.BinarySearch(p.guests, t.B)
		if goes && too && p.knows(t) && weight(t) > 0 {
			g.SetWeightedEdge(simple.WeightedEdge{F: simple.Node(a), T: simple.Node(b), W: weight(t) / weight(p.traffic[0])})
		}
	}
	fixed := dice(1)
	var out [][]int
	for _, members := range community.Modularize(g, 1, &fixed).Communities() {
		var group []int
		for _, n := range members {
			group = append(group, p.guests[n.ID()])
		}
		slices.Sort(group)
		out = append(out, group)
	}
	slices.SortFunc(out, func(a, b []int) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a[0], b[0])) })
	return out
}

// dice is a deterministic random source (splitmix64), so that the same question has the
// same answer.
type dice uint64

// Uint64 returns the next number.
func (d *dice) Uint64() uint64 {
	*d += 0x9e3779b97f4a7c15
	z := uint64(*d)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
