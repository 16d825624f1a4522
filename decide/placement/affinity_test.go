package placement

import (
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pagurus/fleet"
)

// shared draws sites and guests of a job; some guests stay.
func shared(t *rapid.T) parting {
	n := rapid.IntRange(2, 12).Draw(t, "guests")
	p := parting{room: rapid.SliceOfN(rapid.IntRange(0, 8), 1, 4).Draw(t, "room"), at: make([]int, n)}
	for i := range p.at {
		p.at[i] = rapid.IntRange(nowhere, len(p.room)-1).Draw(t, "site")
		if p.at[i] == nowhere {
			p.guests = append(p.guests, i)
		}
	}
	slices.SortFunc(p.room, func(a, b int) int { return b - a }) // as placement returns them
	for a := range n {
		for b := a + 1; b < n; b++ {
			if bytes := rapid.SampledFrom([]uint64{0, 0, 0, 1, 1000, math.MaxUint64}).Draw(t, "bytes"); bytes > 0 {
				p.traffic = append(p.traffic, fleet.Traffic{A: a, B: b, Messages: 1, Bytes: bytes})
			}
		}
	}
	return p
}

// Every guest of the gang gets a site while there is room, and no other guest moves. No
// site is overfilled, and no more sites are used than necessary. Traffic between sites is
// at most that of an assignment in order.
func TestPart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := shared(t)
		at := p.part()
		if again := p.part(); !slices.Equal(at, again) {
			t.Fatalf("%v, and then %v", at, again)
		}
		placed, all := make([]int, len(p.room)), 0
		for i, k := range at {
			switch {
			case !slices.Contains(p.guests, i):
				if k != p.at[i] {
					t.Fatalf("guest %d stays in %d, and goes to %d", i, p.at[i], k)
				}
			case k != nowhere:
				placed[k]++
				all++
			}
		}
		room, used := 0, 0
		for k, n := range placed {
			room += p.room[k]
			if n > 0 {
				used++
			}
			if n > p.room[k] {
				t.Fatalf("site %d takes %d guests and has room for %d", k, n, p.room[k])
			}
		}
		if all != min(room, len(p.guests)) {
			t.Fatalf("%d of %d guests have a site, there is room for %d", all, len(p.guests), room)
		}
		if len(p.guests) > 0 && p.room[0] >= len(p.guests) && used != 1 {
			t.Fatalf("one site has room for all, and %d are used: %v", used, placed)
		}
		silent := p
		silent.traffic = nil
		if inOrder := silent.part(); used > 1 && p.crossing(at) > p.crossing(inOrder) {
			t.Fatalf("%v has %g said across, %v has %g", at, p.crossing(at), inOrder, p.crossing(inOrder))
		}
		if len(p.guests) == len(p.at) { // for a whole job the sites with most room suffice
			need := 0
			for left := all; left > 0; need++ {
				left -= p.room[need]
			}
			if used > need {
				t.Fatalf("%d sites are used where %d have room: %v", used, need, placed)
			}
		}
	})
}

func TestWhere(t *testing.T) {
	const o = nowhere
	for _, c := range []struct {
		name string
		p    parting
		want []int
		why  string // of the first guest of the gang
	}{
		{"a whole job to the best site", parting{guests: []int{0, 1, 2}, room: []int{3, 3, 1}, at: []int{o, o, o}}, []int{0, 0, 0}, "with all of its job"},
		{"over as few as possible, neighbours together", parting{guests: []int{0, 1, 2, 3, 4}, room: []int{3, 2, 1}, at: []int{o, o, o, o, o}}, []int{0, 0, 0, 1, 1}, "with 2 of the 4 others of its job"},
		{"to where the rest is", parting{guests: []int{1}, room: []int{9, 1}, at: []int{1, o, 1}}, []int{1, 1, 1}, "where the rest of its job is"},
		{"to where most are", parting{guests: []int{1}, room: []int{9, 1}, at: []int{1, o, 1, 0}}, []int{1, 1, 1, 0}, "with 2 of the 3 others of its job"},
		{"where the rest is there is no room", parting{guests: []int{1}, room: []int{9, 0}, at: []int{1, o, 1}}, []int{1, 0, 1}, ""},
		{"some to where the rest is", parting{guests: []int{1, 2, 3}, room: []int{2, 1}, at: []int{1, o, o, o}}, []int{1, 0, 0, 1}, "with 1 of the 3 others of its job"},
		{"where the rest is is unknown", parting{guests: []int{1}, room: []int{9}, at: []int{o, o, o}}, []int{o, 0, o}, ""},
	} {
		at := c.p.part()
		if !slices.Equal(at, c.want) {
			t.Errorf("%s: %v, want %v", c.name, at, c.want)
		}
		if why := c.p.why(at, c.p.guests[0]); why != c.why {
			t.Errorf("%s: %q, want %q", c.name, why, c.why)
		}
	}
}

// The first guest of a gang does not take the room that the second has more traffic to.
func TestFirstLeavesRoom(t *testing.T) {
	p := parting{
		guests: []int{0, 2}, room: []int{1, 1}, at: []int{nowhere, 0, nowhere, 0, 0, 1, 0, 0, 0},
		traffic: []fleet.Traffic{{A: 0, B: 5, Messages: 1, Bytes: 1}, {A: 2, B: 5, Messages: 1, Bytes: 1000}},
	}
	if at := p.part(); at[0] != 0 || at[2] != 1 {
		t.Errorf("%v", at)
	}
}

// blocks makes a job with much traffic within blocks and little between them. Its guests
// alternate between blocks, the worst numbering.
func blocks(of []int) (n int, traffic []fleet.Traffic, block []int) {
	left := slices.Clone(of)
	for slices.Max(left) > 0 {
		for b := range left {
			if left[b] > 0 {
				left[b]--
				block = append(block, b)
			}
		}
	}
	for a := range block {
		for b := a + 1; b < len(block); b++ {
			bytes := uint64(1 << 20)
			if block[a] == block[b] {
				bytes <<= 10
			}
			traffic = append(traffic, fleet.Traffic{A: a, B: b, Messages: 10, Bytes: bytes})
		}
	}
	return len(block), traffic, block
}

// Blocks that fit into sites stay together, whatever the guests' order.
func TestBlocksStayTogether(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		of := rapid.SliceOfN(rapid.IntRange(3, 8), 2, 4).Draw(t, "blocks")
		n, traffic, block := blocks(of)
		p := parting{traffic: traffic, at: make([]int, n), room: slices.Clone(of)}
		for i := range n {
			p.guests, p.at[i] = append(p.guests, i), nowhere
		}
		slices.SortFunc(p.room, func(a, b int) int { return b - a })
		at := p.part()
		for a := range n {
			for b := range n {
				if block[a] == block[b] && at[a] != at[b] {
					t.Fatalf("%d and %d are parted: %v", a, b, at)
				}
			}
		}
	})
}

// Part of a job goes to the guests that it exchanges data with, not to the site with most
// guests.
func TestTrafficLeads(t *testing.T) {
	p := parting{guests: []int{1}, room: []int{9, 9}, at: []int{1, nowhere, 0, 0, 0}, traffic: []fleet.Traffic{{A: 0, B: 1, Bytes: 9999}, {A: 1, B: 2, Bytes: 1}}}
	if at := p.part(); at[1] != 1 || p.why(at, 1) != "with 1 of the 4 others of its job, those it has most traffic with" {
		t.Errorf("%v, %q", at, p.why(at, 1))
	}
}

func TestTrafficIsByGuests(t *testing.T) {
	j := fleet.Job{ID: "j1", Spec: fleet.JobSpec{Guests: 3}}
	trace := func(g fleet.GuestID, rank int, sent ...fleet.Sent) fleet.Trace {
		return fleet.Trace{Guest: g, Rank: rank, Sent: sent}
	}
	got := Traffic(j, []fleet.Trace{
		trace("j1g0", 0, fleet.Sent{Rank: 1, Messages: 9, Bytes: 9}, fleet.Sent{Rank: 2, Messages: 1, Bytes: 10}, fleet.Sent{Rank: 77, Bytes: 5}),
		trace("j1g0", 1, fleet.Sent{Rank: 3, Messages: 1, Bytes: math.MaxUint64}),
		trace("j1g1", 2, fleet.Sent{Rank: 1, Messages: 2, Bytes: 20}, fleet.Sent{Rank: -1, Bytes: 5}),
		trace("j1g2", 3, fleet.Sent{Rank: 0, Messages: 1, Bytes: 1}),
		trace("j2g0", 4, fleet.Sent{Rank: 0, Messages: 1, Bytes: 1}),
	})
	want := []fleet.Traffic{{A: 0, B: 2, Messages: 2, Bytes: math.MaxUint64}, {A: 0, B: 1, Messages: 3, Bytes: 30}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// BenchmarkPart places the largest job in sites that are each too small for it.
// TestFewAreNear: of the sites that have room for the rest of a gang, it goes to the one nearest to where the others go; where nothing was
// measured, to the one with most room, and never to more sites for it.
func TestFewAreNear(t *testing.T) {
	gang := func(n int, room ...int) parting {
		p := parting{room: room, at: slices.Repeat([]int{nowhere}, n)}
		for i := range n {
			p.guests = append(p.guests, i)
		}
		return p
	}
	ms := time.Millisecond
	for what, c := range map[string]struct {
		p    parting
		away map[[2]int]time.Duration
		want []int
	}{
		"nothing measured":       {gang(6, 4, 3, 2), nil, []int{0, 1}},
		"the third is near":      {gang(6, 4, 3, 2), map[[2]int]time.Duration{{0, 1}: 40 * ms, {0, 2}: 5 * ms}, []int{0, 2}},
		"the third is too small": {gang(7, 4, 3, 2), map[[2]int]time.Duration{{0, 1}: 40 * ms, {0, 2}: 5 * ms}, []int{0, 1}},
		"only one is measured":   {gang(6, 4, 3, 2), map[[2]int]time.Duration{{0, 2}: 90 * ms}, []int{0, 2}},
		"noise":                  {gang(6, 4, 3, 2), map[[2]int]time.Duration{{0, 1}: 5*ms + 200*time.Microsecond, {0, 2}: 5 * ms}, []int{0, 1}},
		"nearest to both":        {gang(9, 4, 3, 2, 2), map[[2]int]time.Duration{{0, 2}: 5 * ms, {1, 2}: 90 * ms, {0, 3}: 20 * ms, {1, 3}: 20 * ms}, []int{0, 1, 3}},
	} {
		c.p.away = func(a, b int) time.Duration { return max(c.away[[2]int{a, b}], c.away[[2]int{b, a}]) }
		all := make([]int, len(c.p.room))
		for k := range all {
			all[k] = k
		}
		if got := c.p.few(all); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", what, got, c.want)
		}
	}
}

// TestLatencyOfSites: what any host of two sites measured counts, in whichever direction.
func TestLatencyOfSites(t *testing.T) {
	s := fleet.NewSnapshot()
	host := func(id fleet.HostID, site string, paths map[fleet.HostID]fleet.Path) {
		s.Hosts[id] = fleet.Host{ID: id, Facts: fleet.Facts{Site: site, WireGuard: &fleet.WireGuardFacts{Paths: paths}}}
	}
	ms := time.Millisecond
	host("a1", "a", map[fleet.HostID]fleet.Path{"b1": {Latency: 20 * ms}, "c1": {}})
	host("a2", "a", nil)
	host("b1", "b", map[fleet.HostID]fleet.Path{"a2": {Latency: 12 * ms}, "gone": {Latency: ms}})
	host("c1", "c", nil)
	got := NewSurvey(s, LongestIdle{}).latencies()
	if want := map[between]time.Duration{{"a", "b"}: 12 * ms}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func BenchmarkPart(b *testing.B) {
	n, traffic, _ := blocks([]int{63, 63, 62, 62})
	slices.SortFunc(traffic, func(a, b fleet.Traffic) int { return int(b.Bytes) - int(a.Bytes) })
	p := parting{traffic: traffic[:mostTraffic], at: make([]int, n), room: []int{100, 100, 100}}
	for i := range n {
		p.guests, p.at[i] = append(p.guests, i), nowhere
	}
	for b.Loop() {
		p.part()
	}
}
