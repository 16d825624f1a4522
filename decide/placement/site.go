package placement

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// Affinity is a site in which a guest had better be. It goes there if it can, in the
// kind that suits it best, to a host that passes; else it goes as if nobody had
// said one.
type Affinity struct {
	Site string
	Why  string // for people: what speaks for it
	Bar  Bar
}

// Bar is the least of what comes before the site, as guests would have it that
// go wherever is best.
type Bar struct {
	away time.Duration // of a host's owner
	load float64       // virtual CPUs promised for each there is
}

// Sited is a Policy that would have the guests of a job in one site.
type Sited interface{ Sited() }

// Sited says that LongestIdle does. First comes what a host can do at all, then that
// guests share no CPUs, then that its owner has been away for long, then the
// site, then by how much.
func (LongestIdle) Sited() {}

// siteTolerance is by how much less an owner may have been away for the sake of a site.
// The hazard of their return falls with about the square root of that, as published
// fits have it: it may be 1.5 times as much.
const siteTolerance = 2

// Room is how many of some guests find room in a site.
type Room struct {
	Site   string
	Guests int
}

// sites counts hosts by Facts.Site, but for those that say none.
type sites map[string]int

func (s sites) count(site string, by int) {
	if site == "" {
		return
	}
	if s[site] += by; s[site] == 0 {
		delete(s, site)
	}
}

// Sites reports whether it matters to which site a guest goes: there are
// several, and the policy looks at them.
func (v *Survey) Sites() bool {
	_, sited := v.index.policy.(Sited)
	return sited && len(v.index.sites) > 1
}

// Rooms gives how many of some guests find room in each site that has any, the
// one with most first, of equal ones the one whose hosts are best, and what their
// hosts have to pass. The guests are alike but for where they are; the first for
// which there is no room at all ends the count.
func (v *Survey) Rooms(asks []Ask) ([]Room, Bar) {
	bar, n := v.bar(asks)
	if n == 0 {
		return nil, bar
	}
	s := settled(asks[0])
	for len(s) > 1 { // hosts of a better kind leave out all others
		if e, _ := v.best(s[0]); e != nil {
			break
		}
		s = s[1:]
	}
	c := census{v: v, suit: s[0], asks: asks[:n], bar: bar, found: map[string][]hostRoom{}}
	c.count()
	var rooms []Room
	scores := map[string]float64{}
	for _, site := range slices.Sorted(maps.Keys(c.found)) {
		r, found := Room{Site: site}, c.found[site]
		slices.SortFunc(found, func(a, b hostRoom) int {
			return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(b.guests, a.guests))
		})
		for ; r.Guests < n && len(found) > 0; found = found[1:] {
			k := min(found[0].guests, n-r.Guests)
			r.Guests += k
			scores[site] += float64(k) * found[0].score
		}
		rooms = append(rooms, r)
	}
	slices.SortStableFunc(rooms, func(a, b Room) int {
		return cmp.Or(cmp.Compare(b.Guests, a.Guests), cmp.Compare(scores[b.Site], scores[a.Site]))
	})
	return rooms, bar
}

// census is the hosts that pass, by their sites.
type census struct {
	v     *Survey
	suit  suit
	asks  []Ask
	bar   Bar
	found map[string][]hostRoom
}

// hostRoom is a host's room for guests.
type hostRoom struct {
	score  float64
	guests int
}

// count looks at hosts, of each class the best first, until it has room for all.
func (c *census) count() {
	if only := c.suit.ask.Only; len(only) > 0 {
		for _, id := range only {
			c.countHost(c.v.at(id))
		}
		return
	}
	for _, e := range c.v.over {
		c.countHost(e)
	}
	for class, q := range c.v.index.classes {
		able, has := class.abilities(c.suit.ask.Kind)
		if class.site == "" || unable(able, has, c.suit.ask) != "" {
			continue
		}
		left := len(c.asks)
		q.walk(func(slot int) bool {
			e := &c.v.index.entries[slot]
			if _, changed := c.v.over[e.host.ID]; !changed {
				left -= c.countHost(e)
			}
			return left <= 0
		})
	}
}

// countHost notes a host, and for how many guests it has room.
func (c *census) countHost(e *entry) int {
	f, need := &e.host.Facts, c.suit.ask.Need
	free := f.Capacity.MemoryBytes - e.held.bytes
	if f.Site == "" || free < need.MemoryBytes || !c.v.passes(e, c.suit.ask, c.bar) || !c.suit.suits(e.host) {
		return 0
	}
	if !slices.ContainsFunc(c.asks, func(a Ask) bool { a.Kind = c.suit.ask.Kind; return Unfit(c.v, e.host, a) == "" }) {
		return 0
	}
	const rounding = 1e-9
	cpus := c.bar.load*float64(f.Capacity.CPUs) - float64(e.held.cpus)
	n := min(len(c.asks), int(free/max(need.MemoryBytes, 1)), int(cpus/float64(max(need.CPUs, 1))+rounding))
	if n > 0 {
		c.found[f.Site] = append(c.found[f.Site], hostRoom{c.v.score(e, c.suit.ask), n})
	}
	return n
}

// bar gives what the least of the hosts has to which guests would go wherever
// that is, and how many find room before the first that does not.
func (v *Survey) bar(asks []Ask) (Bar, int) {
	anywhere, out := v.Clone(), Bar{away: math.MaxInt64, load: 1} // up to one for each nobody shares
	for i, a := range asks {
		id, found := anywhere.Where(a)
		if !found {
			return out, i
		}
		is := anywhere.amenity(anywhere.at(id), a)
		out = Bar{away: min(out.away, is.away), load: max(out.load, is.load)}
		anywhere.Reserve(id, a.Need)
	}
	return out, len(asks)
}

// amenity is what of a host comes before its site, with one more guest.
func (v *Survey) amenity(e *entry, a Ask) Bar {
	out := Bar{away: math.MaxInt64, load: float64(e.held.cpus+a.Need.CPUs) / float64(max(e.host.Facts.Capacity.CPUs, 1))}
	if o := e.host.Facts.Owner; o != nil && o.State != "" {
		out.away = o.IdleFor(v.At)
	}
	return out
}

func (v *Survey) passes(e *entry, a Ask, bar Bar) bool {
	is := v.amenity(e, a)
	return is.load <= bar.load && is.away >= bar.away/siteTolerance
}

// affinityHost gives the host of the site that a guest had better be in; nil: there is
// none that it may go to.
func (v *Survey) affinityHost(a Ask) (*entry, float64, suit) {
	for _, s := range settled(a) {
		in := s
		in.site = a.Affinity.Site
		e, score := v.best(in)
		if e == nil {
			if anywhere, _ := v.best(s); anywhere != nil {
				break // a lesser kind is worse than another site
			}
			continue
		}
		if !v.passes(e, s.ask, a.Affinity.Bar) {
			break
		}
		return e, score, s
	}
	return nil, 0, suit{}
}

// sited gives the choice in the site that a guest had better be in, if it may go
// there.
func (v *Survey) sited(a Ask) (Choice, bool) {
	if a.Affinity == nil {
		return Choice{}, false
	}
	e, score, s := v.affinityHost(a)
	if e == nil {
		return Choice{}, false
	}
	return Choice{Host: e.host.ID, Kind: s.ask.Kind, Score: score, Reason: v.reason(s.why+"in site "+a.Affinity.Site+", "+a.Affinity.Why+"; ", e)}, true
}

// PlaceAll chooses a host for each guest, each with regard to those before it, and
// takes it. The second result is which of them found no room and ended it; -1:
// none.
func (v *Survey) PlaceAll(asks []Ask) ([]Choice, int) {
	out := make([]Choice, 0, len(asks))
	for i, a := range asks {
		best, found := v.Best(a)
		if !found {
			return out, i
		}
		out = append(out, best)
		v.Reserve(best.Host, a.Need)
	}
	return out, -1
}
