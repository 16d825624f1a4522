// This file chooses sites for the guests of a job: as few as possible, and if several,
// guests with much traffic together.
//
// It must not know hosts, except how many guests a site has room for, nor what moves a
// guest. Its tests compare it with all ways to distribute a few guests, and with random
// ones.

package placement

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"pagurus/decide/desired"
	"pagurus/fleet"
)

// AffinityView gives access to the guests that stay.
type AffinityView struct {
	Job  func(fleet.JobID) fleet.Job
	Site func(fleet.GuestID) string // its present or future site; empty: unknown
}

// MarkAffinity sets preferred sites in the asks of guests that are placed together,
// except for guests that would be alone there. It costs nothing if sites do not matter.
func MarkAffinity(v *Survey, c AffinityView, guests []fleet.Guest, asks []Ask) {
	if !v.Sites() {
		return
	}
	order := make([]int, len(guests))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(guests[a].Job, guests[b].Job), cmp.Compare(guests[a].Index, guests[b].Index))
	})
	for len(order) > 0 {
		n := 1
		for n < len(order) && guests[order[n]].Job == guests[order[0]].Job {
			n++
		}
		gang, own := make([]int, n), make([]Ask, n)
		for i, at := range order[:n] {
			gang[i], own[i] = guests[at].Index, asks[at]
		}
		markJob(v, c, c.Job(guests[order[0]].Job), gang, own)
		for i, at := range order[:n] {
			asks[at] = own[i]
		}
		order = order[n:]
	}
}

// markJob does so for guests of one job, by index.
func markJob(v *Survey, c AffinityView, j fleet.Job, gang []int, asks []Ask) {
	if j.Size() < 2 {
		return
	}
	rooms, bar := v.Rooms(asks)
	p := parting{guests: gang, room: make([]int, len(rooms)), at: make([]int, j.Size()), traffic: j.Traffic}
	for k, r := range rooms {
		p.room[k] = r.Guests
	}
	var measured map[between]time.Duration
	p.away = func(a, b int) time.Duration {
		if measured == nil {
			measured = v.latencies()
		}
		return measured[betweenSites(rooms[a].Site, rooms[b].Site)]
	}
	for i := range p.at {
		p.at[i] = nowhere
		if _, goes := slices.BinarySearch(gang, i); !goes {
			site := c.Site(desired.GuestID(j.ID, i))
			p.at[i] = slices.IndexFunc(rooms, func(r Room) bool { return r.Site == site })
		}
	}
	at := p.part()
	for n, i := range gang {
		if at[i] == nowhere {
			continue
		}
		if why := p.why(at, i); why != "" {
			asks[n].Affinity = &Affinity{Site: rooms[at[i]].Site, Why: why, Bar: bar}
		}
	}
}

const nowhere = -1

// parting distributes guests among sites, which are numbered here.
type parting struct {
	guests  []int           // by index, sorted
	room    []int           // by site: for how many guests
	at      []int           // by guest of the job: the site where it stays
	traffic []fleet.Traffic // between the job's guests; nil: unknown

	away func(a, b int) time.Duration // measured between two sites; nil: unknown
}

// part assigns a site to every guest of the job. If one site has room for the whole gang,
// the gang goes to the one with most traffic to it. Otherwise it goes to as few as
// possible: by index, grouped by traffic, or as if there were none, whichever has least traffic between sites.
func (p parting) part() []int {
	all, whole := make([]int, len(p.room)), []int{}
	for k, room := range p.room {
		if all[k] = k; room >= len(p.guests) {
			whole = append(whole, k)
		}
	}
	if len(whole) > 0 {
		return p.fill([][]int{p.guests}, whole)
	}
	sites := p.few(all)
	best := p.fill([][]int{p.guests}, sites)
	if len(p.traffic) == 0 {
		return best
	}
	// Each guest that fill follows the traffic of takes room that another may have more traffic to.
	silent := p
	silent.traffic = nil
	for _, at := range [][]int{p.fill(p.groups(), sites), silent.fill([][]int{p.guests}, sites)} {
		if p.crossing(at) < p.crossing(best) {
			best = at
		}
	}
	return best
}

// few chooses sites for guests that do not fit into one: sites with guests of their job, then those with most room. The last
// one, of those that have room for all who are left, is the nearest to the others.
func (p parting) few(all []int) []int {
	var out []int
	for left := len(p.guests); len(all) > 0 && left > 0; {
		k := slices.MinFunc(all, func(a, b int) int { // the first of equal ones
			rest := cmp.Compare(min(count(p.at, b), 1), min(count(p.at, a), 1))
			if p.room[a] >= left && p.room[b] >= left {
				return cmp.Or(rest, cmp.Compare(p.farthest(a, out), p.farthest(b, out)), cmp.Compare(p.room[b], p.room[a]))
			}
			return cmp.Or(rest, cmp.Compare(p.room[b], p.room[a]))
		})
		all = slices.DeleteFunc(slices.Clone(all), func(a int) bool { return a == k })
		if room := p.room[k]; room > 0 {
			out, left = append(out, k), left-room
		}
	}
	return out
}

// unmeasured is how far apart sites count between which nothing was measured.
const unmeasured = time.Hour

// farthest is how far a site is from the farthest of others.
func (p parting) farthest(k int, others []int) (most time.Duration) {
	for _, o := range others {
		d := unmeasured
		if p.away != nil {
			d = cmp.Or(p.away(k, o), unmeasured)
		}
		most = max(most, d.Round(time.Millisecond)) // less is noise
	}
	return most
}

// fill assigns groups to sites: each to the site with most traffic to it of those with
// room for the whole group. A group that fits nowhere is split in order of index, so that
// neighbours stay together.
func (p parting) fill(groups [][]int, sites []int) []int {
	out, room := slices.Clone(p.at), slices.Clone(p.room)
	for groups = slices.Clone(groups); len(groups) > 0; {
		group, most := groups[0], 0
		for _, k := range sites {
			most = max(most, min(room[k], len(group)))
		}
		if most == 0 {
			break
		}
		pull := p.pull(out, group[:most])
		roomy := slices.DeleteFunc(slices.Clone(sites), func(k int) bool { return room[k] < most })
		k := slices.MaxFunc(roomy, func(a, b int) int { // the first of equal ones
			return cmp.Or(cmp.Compare(pull[a], pull[b]), cmp.Compare(count(out, a), count(out, b)))
		})
		for _, i := range group[:most] {
			out[i] = k
		}
		room[k] -= most
		if groups[0] = group[most:]; len(groups[0]) == 0 {
			groups = groups[1:]
		}
	}
	return out
}

// count is how many guests are in a site.
func count(at []int, k int) int {
	n := 0
	for _, is := range at {
		if is == k {
			n++
		}
	}
	return n
}

// why says, for people, which guests share a guest's site; empty: none.
func (p parting) why(at []int, i int) string {
	k, rest := at[i], len(at)-len(p.guests)
	here, others := count(p.at, k), count(at, k)-1
	switch {
	case others <= 0:
		return ""
	case rest > 0 && here == rest:
		return "where the rest of its job is"
	case others == len(at)-1:
		return "with all of its job"
	}
	out := fmt.Sprintf("with %d of the %d others of its job", others, len(at)-1)
	if pull := p.pull(at, []int{i}); pull[k] > 0 && pull[k] == slices.Max(pull) {
		out += ", those it has most traffic with"
	}
	return out
}
