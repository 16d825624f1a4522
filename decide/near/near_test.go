package near

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// shared draws guests of a job, some of which stay where they are, and sites.
func shared(t *rapid.T) parting {
	n := rapid.IntRange(2, 12).Draw(t, "guests")
	p := parting{room: rapid.SliceOfN(rapid.IntRange(0, 8), 1, 4).Draw(t, "room"), at: make([]int, n)}
	for i := range p.at {
		p.at[i] = rapid.IntRange(nowhere, len(p.room)-1).Draw(t, "site")
		if p.at[i] == nowhere {
			p.guests = append(p.guests, i)
		}
	}
	slices.SortFunc(p.room, func(a, b int) int { return b - a }) // as placement gives them
	return p
}

// Every guest of the gang gets one site as long as there is room, nobody else
// moves, no site takes more than it has room for, and no more of them are used
// than need be.
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
		if len(p.guests) == len(p.at) { // a job as a whole: those with most room will do
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
		why  string // of the first of the gang
	}{
		{"a whole job to the best site", parting{guests: []int{0, 1, 2}, room: []int{3, 3, 1}, at: []int{o, o, o}}, []int{0, 0, 0}, "with all of its job"},
		{"over as few as possible, neighbours together", parting{guests: []int{0, 1, 2, 3, 4}, room: []int{3, 2, 1}, at: []int{o, o, o, o, o}}, []int{0, 0, 0, 1, 1}, "with 2 of the 4 others of its job"},
		{"to where the rest is", parting{guests: []int{1}, room: []int{9, 1}, at: []int{1, o, 1}}, []int{1, 1, 1}, "where the rest of its job is"},
		{"to where most are", parting{guests: []int{1}, room: []int{9, 1}, at: []int{1, o, 1, 0}}, []int{1, 1, 1, 0}, "with 2 of the 3 others of its job"},
		{"where the rest is there is no room", parting{guests: []int{1}, room: []int{9, 0}, at: []int{1, o, 1}}, []int{1, 0, 1}, ""},
		{"some to where the rest is", parting{guests: []int{1, 2, 3}, room: []int{2, 1}, at: []int{1, o, o, o}}, []int{1, 0, 0, 1}, "with 1 of the 3 others of its job"},
		{"nobody knows where the rest is", parting{guests: []int{1}, room: []int{9}, at: []int{o, o, o}}, []int{o, 0, o}, ""},
	} {
		at := c.p.part()
		if !slices.Equal(at, c.want) {
			t.Errorf("%s: %v, want %v", c.name, at, c.want)
		}
		if why := c.p.why(at, at[c.p.guests[0]]); why != c.why {
			t.Errorf("%s: %q, want %q", c.name, why, c.why)
		}
	}
}
