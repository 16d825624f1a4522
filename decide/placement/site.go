package placement

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// Affinity is a guest's preferred site. The guest goes to a host there that passes Bar,
// as the kind that suits it best. If that is impossible it is placed as without affinity.
type Affinity struct {
	Site string
	Why  string // for people: why this site
	Bar  Bar
}

// Bar is the minimum for criteria that precede the site, from a placement without
// affinity.
type Bar struct {
	away time.Duration // idle time of a host's owner
	load float64       // promised virtual CPUs for each CPU
}

// Sited is a Policy that prefers one site for the guests of a job.
type Sited interface{ Sited() }

// Sited marks LongestIdle. Its criteria in order: what a host can do at all, that guests
// share no CPUs, that the owner has been away long, the site, the exact idle time.
func (LongestIdle) Sited() {}

// siteTolerance is how many times shorter an owner may have been away on a host in the
// preferred site. By published fits the hazard of their return falls with about the
// square root of that time, so it may be 1.5 times as high.
const siteTolerance = 2

// Room is how many of some guests find room in a site.
type Room struct {
	Site   string
	Guests int
}

// sites counts hosts by Facts.Site, without those that report none.
type sites map[string]int

func (s sites) count(site string, by int) {
	if site == "" {
		return
	}
	if s[site] += by; s[site] == 0 {
		delete(s, site)
	}
}

// Sites reports whether the site matters: there are several, and the policy considers
// them.
func (v *Survey) Sites() bool {
	_, sited := v.index.policy.(Sited)
	return sited && len(v.index.sites) > 1
}

// Rooms returns how many of some guests find room in each site, most first, equals by
// their best hosts; and the bar for hosts. The guests are alike except for where they
// are. Counting ends with the first guest that fits nowhere.
func (v *Survey) Rooms(asks []Ask) ([]Room, Bar) {
	bar, n := v.bar(asks)
	if n == 0 {
		return nil, bar
	}
	s := suitsOf(asks[0])
	for len(s) > 1 { // hosts with a better kind exclude all others
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

// census collects the hosts that pass, by site.
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

// count checks hosts, the best of each class first, until all guests have room.
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
		if class.site == "" || q.sizes.most() < c.suit.ask.Need.MemoryBytes || unable(able, has, c.suit.ask) != "" {
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

// countHost adds a host and returns for how many guests it has room.
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

// bar returns the worst criteria among hosts for a placement without affinity, and how
// many guests find room before the first that does not.
func (v *Survey) bar(asks []Ask) (Bar, int) {
	anywhere, out := v.Clone(), Bar{away: math.MaxInt64, load: 1} // up to one per CPU none is shared
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

// amenity is a host's criteria that precede its site, with one more guest.
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

// affinityHost returns the best host in a guest's preferred site; nil: none is allowed.
func (v *Survey) affinityHost(a Ask) (*entry, float64, suit) {
	for _, s := range suitsOf(a) {
		in := s
		in.site = a.Affinity.Site
		e, score := v.best(in)
		if e == nil {
			if anywhere, _ := v.best(s); anywhere != nil {
				break // a worse kind counts more than another site
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

// sited returns the choice in a guest's preferred site, if there is one.
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

// between are two sites, in order.
type between [2]string

func betweenSites(a, b string) between { return between{min(a, b), max(a, b)} }

// latencies are the shortest round trips that hosts of two sites measured between each other. It looks at all hosts, and is asked
// for jobs that fit into no site alone.
func (v *Survey) latencies() map[between]time.Duration {
	all := map[between]time.Duration{}
	for i := range v.index.entries {
		h := v.index.entries[i].host
		if h == nil || h.Facts.WireGuard == nil || h.Facts.Site == "" {
			continue
		}
		for to, path := range h.Facts.WireGuard.Paths {
			site := v.at(to).host.Facts.Site
			if path.Latency <= 0 || site == "" || site == h.Facts.Site {
				continue
			}
			pair := betweenSites(h.Facts.Site, site)
			if had := all[pair]; had == 0 || path.Latency < had {
				all[pair] = path.Latency
			}
		}
	}
	return all
}

// PlaceAll chooses a host for each guest, considering earlier choices, and reserves it.
// The second result is the index of the guest that found no room, which ends the search;
// -1: none.
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
